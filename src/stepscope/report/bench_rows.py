"""Tables of benchmark points on a terminal: they fit the screen, however long a variant's name."""

from typing import Any

from rich.text import Text

from stepscope.report.bench_columns import Column, used
from stepscope.report.bench_groups import Group
from stepscope.report.text import safe

Document = dict[str, Any]

_LABEL = 26
"""Longer names stand on a line of their own, above their row."""
FAILED = {"out_of_memory": "out of memory", "failed": "failed", "timed_out": "timed out"}


def table(group: Group, columns: list[Column], width: int, told: bool = True) -> list[Text]:
    """Heading and a row for each point; nothing where no column has a value.

    Columns that do not fit beside the others follow in a table below. `told`: also the rows of
    what failed, and what became of fixes that did not apply.
    """
    measured = [point for point in group.points if point["status"] == "ok"]
    shown = used(columns, measured)
    if not shown and not (told and len(measured) < len(group.points)):
        return []
    labels = {point["key"]: label(group, point) for point in group.points}
    left = min(_LABEL, max(len(_heading(group)), *map(len, labels.values())))
    lines: list[Text] = []
    for some in _packed(shown, measured, width - 2 - left):
        cells = {point["key"]: _right(point, some, measured) for point in measured}
        lines += [Text()] if lines else []
        lines.append(Text(f"  {_heading(group):<{left}}{_right(None, some, measured)}", "dim"))
        for point in group.points:
            name = labels[point["key"]]
            if point["key"] in cells:
                lines += _row(name, cells[point["key"]], left)
                lines += _not_applied(point) if told else []
            elif told:
                lines.append(_failure(name, point, left))
        told = False
    return lines


def _packed(columns: list[Column], points: list[Document], room: int) -> list[list[Column]]:
    """The columns in order, as many together as there is room for."""
    packed: list[list[Column]] = [[]]
    left = room
    for column in columns:
        needs = 2 + _wide(column, points)
        if needs > left and packed[-1]:
            packed.append([])
            left = room
        packed[-1].append(column)
        left -= needs
    return packed


def _wide(column: Column, points: list[Document]) -> int:
    return max(len(column.heading), *(len(column.cell(point) or "–") for point in points))


def _right(point: Document | None, columns: list[Column], points: list[Document]) -> str:
    """A point's cells, each as wide as its column; the headings for None."""
    return "".join(
        f"  {column.heading if point is None else column.cell(point) or '–':>{wide}}"
        for column, wide in ((column, _wide(column, points)) for column in columns)
    )


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
