"""A treemap's tiles, each known by its position: names may repeat."""

from typing import Any

from stepscope.report.html.escape import pseudo
from stepscope.report.html.palette import COLOURS
from stepscope.report.html.traces import cells
from stepscope.report.story.blocks import Series

_LONGEST = 22
_ROOT = "var(--raised)"
_ON = {True: "var(--ink)", False: "var(--on-series)"}


def treemap(series: Series) -> dict[str, Any]:
    """One trace. A tile with children is as large as they are together."""
    names = [str(name) for name in series.x]
    parents = list(series.parents) or [""] * len(names)
    for parent in sorted(set(parents) - set(names) - {""}):
        names, parents = [*names, parent], [*parents, ""]
    above = _above(names, parents)
    with_children = {at for at in above if at is not None}
    values = cells(series.y) + [0.0] * (len(names) - len(series.y))
    colours = _colours(above)
    texts = [pseudo(text) for text in series.text]
    return {
        "type": "treemap",
        "ids": [str(at) for at in range(len(names))],
        "labels": [pseudo(_short(name)) for name in names],
        "customdata": [pseudo(name) for name in names],
        "parents": ["" if at is None else str(at) for at in above],
        "values": [0.0 if at in with_children else value for at, value in enumerate(values)],
        "text": texts + [""] * (len(names) - len(texts)),
        "branchvalues": "remainder",
        "textinfo": "label+text" if texts else "label+percent root",
        "hovertemplate": "%{customdata}<br>%{value} · %{percentRoot:.1%}<br>%{text}<extra></extra>",
        "textfont": {"color": [_ON[paint == _ROOT] for paint in colours]},
        "marker": {
            "colors": colours,
            "pad": {"t": 22, "l": 3, "r": 3, "b": 3},
            "line": {"width": 1, "color": "var(--surface)"},
        },
        "tiling": {"pad": 2},
        "pathbar": {"visible": False},
        "maxdepth": 3,
    }


def _short(name: str) -> str:
    """As much of a name as a tile may have room for."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _above(names: list[str], parents: list[str]) -> list[int | None]:
    """Each tile's parent. A name that several tiles have means a root, else the first of them."""
    place: dict[str, int] = {}
    for at, (name, parent) in enumerate(zip(names, parents, strict=True)):
        if name not in place or (not parent and parents[place[name]]):
            place[name] = at
    above = [place[parent] if parent else None for parent in parents]
    for at in range(len(above)):
        if _circles(at, above):
            above[at] = None
    return above


def _circles(at: int, above: list[int | None]) -> bool:
    """Whether a tile is, by way of others, its own parent."""
    seen: set[int] = set()
    up = above[at]
    while up is not None and up != at and up not in seen:
        seen.add(up)
        up = above[up]
    return up == at


def _colours(above: list[int | None]) -> list[str]:
    """One colour for each branch below a single root, else for each root."""
    roots = [at for at, parent in enumerate(above) if parent is None]
    below = [at for at, parent in enumerate(above) if len(roots) == 1 and parent == roots[0]]
    order = {at: number for number, at in enumerate(below or roots)}
    tops = [_branch(at, above, order) for at in range(len(above))]
    return [_ROOT if top is None else f"var(--series-{order[top] % COLOURS + 1})" for top in tops]


def _branch(at: int | None, above: list[int | None], order: dict[int, int]) -> int | None:
    """The branch a tile is in; None for what stands above the branches."""
    while at is not None and at not in order:
        at = above[at]
    return at
