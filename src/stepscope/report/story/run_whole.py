"""The whole run: every second from launch to end."""

from typing import Any

from stepscope.report.names import ACCOUNT
from stepscope.report.story.blocks import Axis, Chart, Column, Missing, Section, Series, Table
from stepscope.report.story.places import run_again, shown_place
from stepscope.report.text import seconds

Document = dict[str, Any]
_DRAWN = 0.002  # of the run: what is shorter cannot be seen in a bar


def run_whole(document: Document) -> Section:
    """The section. A category that took no time is left out."""
    account: dict[str, float] = document["account_s"]
    total = sum(account.values())
    title = "The whole run"
    if not total:
        how = run_again(document, "")
        missing = Missing("When the program began and ended is not known.", how)
        return Section("run", title, (missing,))
    series = tuple(
        Series(ACCOUNT.get(name, name), ["run"], [value])
        for name, value in account.items()
        if value >= _DRAWN * total
    )
    chart = Chart(
        "account", "stacked", f"All {seconds(total)} of it", series, y=Axis("s"), across=True
    )
    return Section("run", title, (chart, _table(document, account, total)))


def _table(document: Document, account: dict[str, float], total: float) -> Table:
    columns = (
        Column("part"),
        Column("time", "s", number=True),
        Column("share", number=True, percent=True),
        Column("where"),
    )
    rows = tuple(
        (ACCOUNT.get(name, name), value, value / total, _where(document, name))
        for name, value in sorted(account.items(), key=lambda item: -item[1])
        if value > 0
    )
    return Table("account", columns, rows, "By part")


def _where(document: Document, category: str) -> str:
    at = document["account_places"].get(category, {})
    if category == "imports" and at:
        return f"{at['module']} {seconds(at['seconds'])}"
    return shown_place(at.get("file"), at.get("line"), document["run"]["program"])
