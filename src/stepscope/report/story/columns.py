"""Tables without columns that say nothing."""

from stepscope.report.story.blocks import Cell, Column, Table


def told_table(
    name: str, columns: tuple[Column, ...], rows: tuple[tuple[Cell, ...], ...], title: str
) -> Table:
    """A table of the columns of which anything is known."""
    kept = [
        at
        for at in range(len(columns))
        if any(row[at] is not None and row[at] != "" for row in rows)
    ]
    return Table(
        name,
        tuple(columns[at] for at in kept),
        tuple(tuple(row[at] for at in kept) for row in rows),
        title,
    )
