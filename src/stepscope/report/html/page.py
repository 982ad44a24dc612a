"""The whole page: one file without a single request to anywhere."""

from stepscope.record.version import __version__
from stepscope.report.html.assets import asset, assets, chart_library, packed, source_hash
from stepscope.report.html.blocks import anchor, section
from stepscope.report.html.escape import text
from stepscope.report.story.blocks import Chart, Story

_SCRIPTS = ("base.js", "tables.js", "actions.js", "navigation.js")
_STYLES = ("tokens.css", "page.css", "blocks.css", "tables.css", "cards.css")


def render(story: Story, timeline: bytes | None = None) -> str:
    """A story as HTML. `timeline` is the gzipped payload of timeline_data.encode.

    Raises MissingExtra where there are charts to draw and plotly is not installed.
    """
    charts = any(isinstance(block, Chart) for part in story.sections for block in part.blocks)
    library, library_hash = chart_library() if charts else ("", "")
    early, late = asset("theme.js"), [asset(one) for one in _SCRIPTS]
    if charts:
        late.append(asset("charts.js"))
    if timeline is not None:
        late += assets("timeline", ".js")
    late.append(asset("page.js"))
    shown = assets("timeline", ".css") if timeline is not None else []
    style = "\n".join([*map(asset, _STYLES), *shown, asset("print.css")])
    hashes = [source_hash(one) for one in (early, *late)] + ([library_hash] if charts else [])
    stored = _stored("chart-library", library)
    stored += _stored("timeline-data", packed(timeline) if timeline is not None else "")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(hashes)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f'<meta name="generator" content="stepscope {__version__}">\n'
        f"<title>{text(story.title)} · stepscope</title>\n<style>{style}</style>\n"
        f"<script>{early}</script>\n</head>\n"
        f"<body>\n{_bar(story)}\n{_main(story, timeline is not None)}\n{stored}"
        + "".join(f"<script>{one}</script>\n" for one in late)
        + "</body>\n</html>\n"
    )


def _policy(hashes: list[str]) -> str:
    """Only our own scripts run; nothing is fetched, framed or sent.

    Styles are free, since the chart library writes its own: without addresses to fetch from they
    can tell nobody anything.
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(hashes)}",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _bar(story: Story) -> str:
    links = "".join(f'<a href="#{anchor(part)}">{text(part.title)}</a>' for part in story.sections)
    return (
        '<a class="skip" href="#main">Skip to the report</a>\n<header class="bar" id="top">'
        '<div class="bar-row"><a class="brand" href="#top">stepscope</a>'
        f'<span class="bar-title">{text(story.title)}</span>'
        f'<span class="bar-verdict" aria-hidden="true">{text(story.verdict)}</span>'
        '<button type="button" class="quiet" data-act="theme" aria-label="Dark theme"'
        ' aria-pressed="false"></button></div>'
        f'<nav aria-label="Sections">{links}</nav></header>'
    )


def _main(story: Story, timeline: bool) -> str:
    parts = "\n".join(section(part, timeline=timeline) for part in story.sections)
    return (
        f'<main id="main"><div class="hero"><p class="hero-title">{text(story.title)}</p>'
        f"<h1>{text(story.verdict)}</h1><p>{text(story.subtitle)}</p></div>\n"
        '<noscript><p class="missing" role="note"><b>Charts, sorting and the timeline need this'
        " page's own scripts.</b> They fetch nothing.</p></noscript>\n"
        f"{parts}\n<footer>Made by stepscope {__version__}. This page loads nothing from"
        " elsewhere.</footer></main>"
    )


def _stored(label: str, data: str) -> str:
    """Bytes for a script, in an element that is never run."""
    return f'<script type="application/gzip" id="{label}">{data}</script>\n' if data else ""
