"""The whole page: one file that makes no requests, with scripts pinned by hash."""

import base64
import gzip
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from stepscope.record.errors import MissingExtra
from stepscope.record.version import __version__
from stepscope.report.render.html.blocks import render_section, section_anchor
from stepscope.report.render.html.escape import escape_text
from stepscope.report.render.html.timeline import encode_timeline
from stepscope.report.story.blocks import Chart, Story, TimelineView
from stepscope.results.load import LoadedResult

_ASSETS = files("stepscope.report.render.html").joinpath("assets")


def asset(name: str) -> str:
    """The text of one of our asset files."""
    return _ASSETS.joinpath(name).read_text(encoding="utf-8")


def assets(folder: str, ending: str) -> list[str]:
    """The texts of a folder's files with this ending, by name."""
    names = sorted(one.name for one in _ASSETS.joinpath(folder).iterdir())
    return [asset(f"{folder}/{name}") for name in names if name.endswith(ending)]


def source_hash(text: str) -> str:
    """An inline script's hash for a Content-Security-Policy."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def chart_library() -> tuple[str, str]:
    """Plotly, gzipped and base64-encoded, and the hash of its text. Raises MissingExtra without
    plotly."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("plotly", "report", "an HTML report")
    file = Path(next(iter(spec.submodule_search_locations)), "package_data", "plotly.min.js")
    if not file.is_file():
        raise MissingExtra("plotly", "report", "an HTML report")
    text = file.read_bytes()
    hashed = source_hash(text.decode("utf-8"))
    return base64.b64encode(gzip.compress(text, 9, mtime=0)).decode("ascii"), hashed


_SCRIPTS = ("page/base.js", "page/tables.js", "page/actions.js", "page/navigation.js")
_STYLES = (
    "page/tokens.css",
    "page/page.css",
    "page/blocks.css",
    "page/tables.css",
    "page/cards.css",
)


def render_page(story: Story, timeline: bytes | None = None) -> str:
    """A story as HTML. `timeline` is the gzipped payload of `timeline.encode_timeline`.

    Raises MissingExtra if there are charts but plotly is not installed.
    """
    early, late, stored = asset("page/theme.js"), [asset(one) for one in _SCRIPTS], ""
    styles, library_hash = [*map(asset, _STYLES)], ""
    if any(isinstance(block, Chart) for block in story.blocks):
        library, library_hash = chart_library()
        stored += f'<script type="application/gzip" id="chart-library">{library}</script>\n'
        late.append(asset("page/charts.js"))
    if timeline is not None:
        data = base64.b64encode(timeline).decode("ascii")
        stored += f'<script type="application/gzip" id="timeline-data">{data}</script>\n'
        late += assets("timeline", ".js")
        styles += assets("timeline", ".css")
    late.append(asset("page/page.js"))
    styles.append(asset("page/print.css"))
    style = "\n".join(styles)
    hashes = " ".join([*map(source_hash, (early, *late)), library_hash]).rstrip()
    # Only our own scripts run; nothing is fetched, framed or sent. Styles are unrestricted, since
    # plotly writes its own: without URLs to fetch they cannot leak anything.
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline';"
        " img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f'<meta name="generator" content="stepscope {__version__}">\n'
        f"<title>{escape_text(story.title)} · stepscope</title>\n<style>{style}</style>\n"
        f"<script>{early}</script>\n</head>\n"
        f"<body>\n{_bar(story)}\n{_main(story, timeline is not None)}\n{stored}"
        + "".join(f"<script>{one}</script>\n" for one in late)
        + "</body>\n</html>\n"
    )


def _bar(story: Story) -> str:
    links = "".join(
        f'<a href="#{section_anchor(part)}">{escape_text(part.title)}</a>'
        for part in story.sections
        if part.title
    )
    return (
        '<a class="skip" href="#main">Skip to the report</a>\n<header class="bar" id="top">'
        '<div class="bar-row"><a class="brand" href="#top">stepscope</a>'
        f'<span class="bar-title">{escape_text(story.title)}</span>'
        f'<span class="bar-verdict" aria-hidden="true">{escape_text(story.verdict)}</span>'
        '<button type="button" class="quiet" data-act="theme" aria-label="Dark theme"'
        ' aria-pressed="false"></button></div>'
        f'<nav aria-label="Sections">{links}</nav></header>'
    )


def _main(story: Story, timeline: bool) -> str:
    parts = "\n".join(render_section(part, timeline=timeline) for part in story.sections)
    return (
        f'<main id="main"><div class="hero"><p class="hero-title">{escape_text(story.title)}</p>'
        f"<h1>{escape_text(story.verdict)}</h1><p>{escape_text(story.subtitle)}</p></div>\n"
        '<noscript><p class="missing" role="note"><b>Charts, sorting and the timeline need this'
        " page's own scripts.</b> They fetch nothing.</p></noscript>\n"
        f"{parts}\n<footer>Made by stepscope {__version__}. This page loads nothing from"
        " elsewhere.</footer></main>"
    )


_PERFETTO_BYTES: Final = 1_500_000
"""Bytes; a larger trace stays a separate file."""


def result_page(subjects: Sequence[LoadedResult], story: Story) -> str:
    """The whole page, with the timeline if a window was recorded and there is one result. Raises
    MissingExtra if charts need a package."""
    drawn = any(isinstance(block, TimelineView) for block in story.blocks)
    timeline, trace = subjects[0].timeline if drawn else None, subjects[0].trace
    if timeline is None:
        return render_page(story)
    small = trace is not None and trace.stat().st_size <= _PERFETTO_BYTES
    handed = trace.read_bytes() if trace is not None and small else None
    return render_page(story, encode_timeline(timeline, trace=handed))
