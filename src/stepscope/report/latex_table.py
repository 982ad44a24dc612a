"""Tables in LaTeX: over several pages where they are long, in several parts where they are wide."""

from stepscope.report.html.numbers import shown
from stepscope.report.latex_escape import text
from stepscope.report.story.blocks import Column, Table
from stepscope.report.text import plural

_LONG = 110
"""Characters of a cell."""
_WIDE = 92
"""Characters that fit beside each other in the small type of tables."""
_NUMBER, _LEAST, _NARROW, _MOST = 9, 7, 16, 60
"""Characters: of a number; of a column of text at least, where room is short, and at most."""


def table(block: Table) -> str:
    """The table, its title above; rows beyond `shown` are counted, not printed."""
    if not block.rows:
        return ""
    rows = [
        [_short(shown(value, column)) for value, column in zip(line, block.columns, strict=True)]
        for line in block.rows[: block.shown]
    ]
    widths = [
        _width(column, [line[at] for line in rows]) for at, column in enumerate(block.columns)
    ]
    least = [
        wide if column.number else min(wide, _NARROW)
        for wide, column in zip(widths, block.columns, strict=True)
    ]
    parts = [
        _part(block, rows, chosen, _fitted(chosen, widths, least)) for chosen in _chosen(least)
    ]
    title = rf"\subsubsection*{{{text(block.title)}}}" if block.title else ""
    left = len(block.rows) - len(rows)
    rest = rf"\emph{{\ldots{{}} and {plural(left, 'row')} more}}" if left > 0 else ""
    return "\n\n".join(part for part in (title, *parts, rest) if part)


def _short(cell: str) -> str:
    """Names of kernels may be pages long: on paper their beginning and end must do."""
    return cell if len(cell) <= _LONG else f"{cell[: _LONG - 31]}…{cell[-30:]}"


def _heading(column: Column) -> str:
    return f"{column.name} ({column.unit})" if column.unit else column.name


def _width(column: Column, cells: list[str]) -> int:
    head = max((len(word) for word in _heading(column).split()), default=0)
    longest = max([head, *map(len, cells)])
    return max(_NUMBER, head, longest) if column.number else min(max(longest, _LEAST), _MOST)


def _chosen(widths: list[int]) -> list[list[int]]:
    """Which columns stand together; the first is repeated."""
    made: list[list[int]] = [[0]]
    used = widths[0]
    for at in range(1, len(widths)):
        if used + widths[at] + 2 > _WIDE and len(made[-1]) > 1:
            made.append([0])
            used = widths[0]
        made[-1].append(at)
        used += widths[at] + 2
    return made


def _fitted(chosen: list[int], widths: list[int], least: list[int]) -> dict[int, float]:
    """How wide each column gets: what it wants, as far as there is room beyond the least."""
    room = _WIDE - 2 * len(chosen) - sum(least[at] for at in chosen)
    wanted = sum(widths[at] - least[at] for at in chosen)
    share = min(1.0, max(room, 0) / wanted) if wanted else 0.0
    return {at: least[at] + share * (widths[at] - least[at]) for at in chosen}


def _part(block: Table, rows: list[list[str]], chosen: list[int], widths: dict[int, float]) -> str:
    columns = [block.columns[at] for at in chosen]
    scale = 0.98 / max(_WIDE, sum(widths[at] + 2 for at in chosen))
    spec = "".join(
        rf">{{\ragged{'left' if column.number else 'right'}\arraybackslash}}"
        rf"p{{{widths[at] * scale:.3f}\linewidth}}"
        for at, column in zip(chosen, columns, strict=True)
    )
    head = " & ".join(rf"\textbf{{{text(_heading(column))}}}" for column in columns)
    body = "\n".join(" & ".join(text(line[at]) for at in chosen) + r" \\" for line in rows)
    return (
        "{\\footnotesize\\setlength{\\tabcolsep}{3pt}\n"
        rf"\begin{{longtable}}[l]{{@{{}}{spec}@{{}}}}"
        "\n\\toprule\n"
        f"{head} \\\\\n\\midrule\n\\endhead\n{body}\n\\bottomrule\n\\end{{longtable}}}}"
    )
