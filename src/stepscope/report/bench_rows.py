"""Tables of benchmark points on a terminal: they fit the screen, however long a variant's name."""

from typing import Any

from rich.text import Text

from stepscope.report.bench_columns import Column, used
from stepscope.report.bench_groups import Group
from stepscope.report.text import safe

Document = dict[str, Any]

FAILED = {"out_of_memory": "out of memory", "failed": "failed", "timed_out": "timed out"}


def table(group: Group, columns: list[Column], width: int, told: bool = True) -> list[Text]:
    """Heading and a row for each point; nothing where no column has a value.

    `told`: also the rows of what failed, and what became of fixes that did not apply.
    """
    measured = [point for point in group.points if point["status"] == "ok"]
    shown = used(columns, measured)
    if not shown and not (told and len(measured) < len(group.points)):
        return []
    cells = [[column.cell(point) or "–" for column in shown] for point in measured]
    widths = [
        max(len(column.heading), *(len(row[n]) for row in cells)) if cells else 0
        for n, column in enumerate(shown)
    ]
    labels = {point["key"]: label(group, point) for point in group.points}
    room = width - 2 - sum(wide + 2 for wide in widths)
    longest = max(len(_heading(group)), *map(len, labels.values()))
    left = max(min(12, longest), min(room, longest))
    rows = dict(zip((point["key"] for point in measured), cells, strict=True))
    headings = _right([column.heading for column in shown], widths)
    lines = [Text(f"  {_heading(group):<{left}}{headings}", "dim")]
    for point in group.points:
        name = labels[point["key"]]
        if point["key"] in rows:
            lines += _row(name, _right(rows[point["key"]], widths), left)
            lines += _not_applied(point) if told else []
        elif told:
            lines.append(_failure(name, point, left))
    return lines


def label(group: Group, point: Document) -> str:
    """Batch, and variant where there are several; `!` where the series was unstable."""
    words = f"{point['batch']:>5,}"
    if _names_variants(group):
        words += f"  {safe(point['variant'])}"
    return words + (" !" if point.get("unstable") else "")


def _names_variants(group: Group) -> bool:
    return group.variants != ["none"]


def _heading(group: Group) -> str:
    return "batch" + ("  variant" if _names_variants(group) else "")


def _right(cells: list[str], widths: list[int]) -> str:
    return "".join(f"  {cell:>{wide}}" for cell, wide in zip(cells, widths, strict=True))


def _row(name: str, cells: str, left: int) -> list[Text]:
    if len(name) <= left:
        return [Text(f"  {name:<{left}}{cells}")]
    return [Text(f"  {name}"), Text(f"  {'':<{left}}{cells}")]


def _failure(name: str, point: Document, left: int) -> Text:
    why = f": {safe(point['why'])}" if point.get("why") else ""
    return Text(f"  {name:<{left}}  {FAILED.get(point['status'], 'failed')}{why}", "red")


def _not_applied(point: Document) -> list[Text]:
    return [
        Text(f"         without {safe(fix['name'])}: {safe(str(fix['why']))}", "yellow")
        for fix in point.get("not_applied") or []
    ]
