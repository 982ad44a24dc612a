"""The story of `stepscope runs`: the results kept in a folder."""

import shlex
from collections.abc import Sequence

from stepscope.record.units import format_bytes, plural
from stepscope.report.story.blocks import Column, Command, Missing, Section, Story, Table, Weight
from stepscope.report.story.phrases import minute_text
from stepscope.store.inventory import StoredResult


def inventory_story(found: Sequence[StoredResult], folder: str = "") -> Story:
    """`folder` is what to name in commands; empty for ./.stepscope."""
    tables = Table.known(
        "results",
        "",
        found,
        (Column("name"), lambda one: one.name),
        (Column("kind"), lambda one: one.kind),
        (Column("program", clip=True), _program),
        (Column("started", priority=2), lambda one: minute_text(one.started) or None),
        (Column("ended", priority=1), _ended),
        (Column("size"), lambda one: format_bytes(one.size_bytes)),
        (Column("kept"), lambda one: "pinned" if one.pinned else None),
        shown=len(found),
    )
    total = format_bytes(sum(one.size_bytes for one in found))
    newest = next((one.name for one in found if one.kind == "run"), None)
    empty = Missing("Nothing here yet.", command="stepscope run train.py")
    show = [Command(f"stepscope show {shlex.quote(newest)}", "the newest run")] if newest else []
    clean = f"stepscope runs clean --older-than 30d {shlex.quote(folder) if folder else ''}".strip()
    return Story(
        title="runs",
        subtitle=f"{plural(len(found), 'result')} · {total}",
        sections=(Section("results", "", tuple(tables) or (empty,), Weight.LEAD),),
        kind="runs",
        next=(*show, Command(clean, "all but pinned ones")) if found else (),
    )


def _program(one: StoredResult) -> str | None:
    return None if one.program is None else shlex.join([one.program, *one.arguments])


def _ended(one: StoredResult) -> str | None:
    if one.under_way:
        return "under way"
    return {None: None, 0: "ok"}.get(one.exit_code, f"exit code {one.exit_code}")
