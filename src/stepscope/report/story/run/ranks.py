"""A run's ranks: the table of who works and who waits, what they exchanged, and which are lost."""

from collections.abc import Callable, Iterable
from typing import Any

from stepscope.analyze.run.document import RankState, StragglerCause
from stepscope.record.units import format_number, plural
from stepscope.report.story.blocks import (
    Block,
    Column,
    Missing,
    Paragraph,
    Section,
    Table,
    Tone,
    Weight,
)
from stepscope.report.story.phrases import location_of, shown_program

Document = dict[str, Any]
_MOST_ROWS = 8  # on a screen
_MOST_NAMED = 6  # ranks in one sentence
_CAUSES = {
    StragglerCause.DATA: "it waits longer for data",
    StragglerCause.FORWARD: "forward takes longer",
    StragglerCause.BACKWARD: "backward takes longer",
    StragglerCause.OPTIMIZER: "the optimizer takes longer",
    StragglerCause.CHECKPOINT: "it writes checkpoints",
    StragglerCause.HOST: "other code takes longer",
}


def counted_ranks(document: Document) -> str:
    """`4 ranks on 1 node`; empty for a program of one process."""
    ranks = document.get("ranks") or []
    if len(ranks) < 2:
        return ""
    nodes = len({one["node"] for one in ranks})
    return f"{plural(len(ranks), 'rank')} on {plural(nodes, 'node')}"


def rank_notes(document: Document) -> list[Paragraph]:
    """Ranks that failed, were killed or never came: the one that did so by itself first."""
    ranks = document.get("ranks") or []
    by: dict[str, list[Document]] = {}
    for one in ranks:
        by.setdefault(one["state"], []).append(one)
    found = [_failed(one) for one in by.get(RankState.FAILED, ())[:_MOST_NAMED]]
    for state, words in (
        (RankState.MISSING, "never started"),
        (RankState.UNREADABLE, "cannot be read: damaged files"),
    ):
        if state in by:
            found.append(f"{_named(by[state])} {words}.")
    killed = by.get(RankState.KILLED, ())
    standing: dict[str, list[Document]] = {}
    for one in sorted(killed, key=lambda one: one["stood_in"] is not None):  # who waited, last
        standing.setdefault(_stood(one, document), []).append(one)
    found += [f"{_named(them)} ended without a word {where}." for where, them in standing.items()]
    again = [one for one in ranks if one["restarts"]]
    if again:
        found.append(f"{_named(again)} restarted; the last attempt is shown.")
    return [Paragraph(text, tone=Tone.WARN) for text in found]


def _failed(one: Document) -> str:
    error = one["error"] or {}
    first = str(error.get("text") or "").strip().split("\n")[0][:100]
    return f"Rank {one['rank']} failed after {plural(one['steps'], 'step')}: " + (
        f"{error.get('type')}{first and f': {first}'}."
    )


def _stood(one: Document, document: Document) -> str:
    """`after 12 steps, in all_reduce at train.py:30`."""
    text, stood = f"after {plural(one['steps'], 'step')}", one["stood_in"]
    if stood is None:
        return text
    place = location_of(stood, shown_program(document["run"]))
    what = "backward" if stood["kind"] == "gradients" else stood["kind"]
    return f"{text}, in {what}" + (f" at {place}" if place else "")


def _named(ranks: list[Document]) -> str:
    """`Rank 1`, `Ranks 1, 3 and 5`, `Ranks 0, 1, 2, 3, 4, 5 and 58 more`."""
    numbers = [str(one["rank"]) for one in ranks]
    if len(numbers) == 1:
        return f"Rank {numbers[0]}"
    if len(numbers) > _MOST_NAMED:
        return f"Ranks {', '.join(numbers[:_MOST_NAMED])} and {len(numbers) - _MOST_NAMED} more"
    return f"Ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def rank_blocks(document: Document, short: bool = False) -> list[Block]:
    """The table of ranks; `short`: for a screen. Empty for a program of one process."""
    ranks = document.get("ranks") or []
    if len(ranks) < 2:
        return []
    late = document.get("straggler") or {}
    rows = ranks
    if short and len(ranks) > _MOST_ROWS:
        busiest = sorted(ranks, key=lambda one: one["waiting_for_others_ms"] or 0.0)
        rows = sorted(busiest[:_MOST_ROWS], key=lambda one: one["rank"])
    title = "Ranks" if len(rows) == len(ranks) else f"Ranks that wait least, of {len(ranks)}"

    def remark(one: Document) -> str:
        if one["rank"] == late.get("rank"):
            since = late["since_step"]
            return "late" if since <= 1 else f"late since step {since:,}"
        return "" if one["state"] in (RankState.ENDED, RankState.RUNNING) else str(one["state"])

    def of(key: str) -> Callable[[Document], float | None]:
        return lambda one: one[key]

    table = Table.known(
        "ranks",
        title,
        rows,
        (Column("rank", number=True, digits=6), lambda one: one["rank"]),
        (Column.numeric("steps", digits=9, priority=2), lambda one: one["steps"] or None),
        (Column.numeric("step", "ms"), of("step_ms")),
        (Column.numeric("work"), of("work_ms")),
        (Column.numeric("data"), lambda one: one["phases_ms"].get("data_wait")),
        (Column.numeric("comm", priority=1), of("exposed_communication_ms")),
        (Column.numeric("waits"), of("waiting_for_others_ms")),
        (Column(""), remark),
        tones=tuple(Tone.WARN if one["rank"] == late.get("rank") else Tone.PLAIN for one in rows),
    )
    return [*table]


def ranks_section(document: Document) -> Section | None:
    """Everything known of the ranks; None for a program of one process."""
    blocks = rank_blocks(document)
    if not blocks:
        return None
    late, program = document.get("straggler"), shown_program(document["run"])
    if late is not None:
        place = location_of(late["place"] or {}, program)
        since = f" since step {late['since_step']:,}" if late["since_step"] > 1 else ""
        text = (
            f"Rank {late['rank']} is late{since} by {format_number(late['late_ms'])} ms per step: "
            f"{_CAUSES[late['cause']]}" + (f" ({place})." if place else ".")
        )
        blocks.insert(0, Paragraph(text, strong=True, tone=Tone.WARN))
    blocks += _exchanged(document.get("collectives") or ())
    if not any(one["waiting_for_others_ms"] is not None for one in document["ranks"]):
        blocks.append(Missing("No collectives seen: who waited for whom is unknown."))
    note = (
        "waits: until the last rank had come; comm: from then until the data was exchanged. Both "
        "as the host saw them: where collectives run on the GPU, the host does not wait in them."
    )
    blocks.append(Paragraph(note, tone=Tone.QUIET))
    return Section("ranks", "Ranks", tuple(blocks), Weight.LEAD)


def _exchanged(collectives: Iterable[Document]) -> list[Table]:
    return Table.known(
        "collectives",
        "What ranks exchange",
        collectives,
        (Column("what"), lambda one: one["kind"].replace("_", " ")),
        (Column.numeric("per step"), lambda one: one["per_step"]),
        (Column.numeric("size", "MiB"), lambda one: one["bytes"] and one["bytes"] / 2**20),
        (Column.numeric("time", "ms"), lambda one: one["time_ms"]),
        (Column.numeric("arrival spread", "ms"), lambda one: one["spread_ms"]),
        (Column.numeric("largest", "ms", priority=1), lambda one: one["most_spread_ms"]),
    )
