"""Charts as pictures: drawn by matplotlib, without a window and without a state of its own."""

import re
import warnings
from pathlib import Path
from typing import Any

from stepscope.record.errors import MissingExtra
from stepscope.report.story.blocks import Chart, Story

_NOT_IN_FILES = re.compile(r"[^A-Za-z0-9_-]+")
_SALT = {"svg.hashsalt": "stepscope", "pdf.fonttype": 42, "svg.fonttype": "none"}


def charts(story: Story) -> list[Chart]:
    """Those with anything to draw, in order."""
    blocks = (block for section in story.sections for block in section.blocks)
    found = (block for block in blocks if isinstance(block, Chart))
    return [chart for chart in found if any(len(one.y) or len(one.x) for one in chart.series)]


def file_stem(chart: Chart) -> str:
    """What its file may be called."""
    return _NOT_IN_FILES.sub("-", chart.id).strip("-") or "chart"


def write_image(chart: Chart, path: Path, *, titled: bool = False) -> None:
    """One chart; the same bytes for the same chart. `titled`: with its title above, as a file that
    is shown alone needs. Raises MissingExtra without matplotlib."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise MissingExtra("matplotlib", "report", "a picture") from None
    with rc_context(_SALT), warnings.catch_warnings():
        # Letters that its fonts lack are drawn as boxes: no reason to say more.
        warnings.simplefilter("ignore")
        figure = _figure(chart, titled)
        # Without a date in it.
        dated = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(path, dpi=160, metadata=dated.get(path.suffix))


def _figure(chart: Chart, titled: bool) -> Any:
    from matplotlib.figure import Figure

    from stepscope.report.images_draw import draw, height
    from stepscope.report.images_words import words

    figure = Figure(figsize=(7.2, height(chart)), layout="constrained")
    draw(chart, figure.subplots())
    if titled:
        figure.suptitle(words(chart.title, 90), fontsize=10, fontweight="bold")
    return figure
