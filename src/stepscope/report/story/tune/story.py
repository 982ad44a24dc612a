"""The story of a tune: the ladder, what was rejected, the patch, and what each rung costs."""

from math import nan
from typing import Any

from stepscope.report.story.blocks import (
    Axis,
    Block,
    Cell,
    Chart,
    Code,
    Column,
    Facts,
    Missing,
    Paragraph,
    Section,
    Series,
    Story,
    Table,
)
from stepscope.report.story.phrases import display_path
from stepscope.report.story.summary import machine_facts
from stepscope.report.story.tune.not_tried import why_not_tried
from stepscope.report.story.tune.proof import proof_section
from stepscope.report.story.tune.words import claim, stop_reason
from stepscope.report.text import format_duration, format_number, plural
from stepscope.results.load import LoadedResult

Document = dict[str, Any]
BASELINE_LABEL = "as it is"


def _ladder_section(document: Document) -> Section:
    """The table with the program as it is in its first row, and the charts beside it."""
    rungs = document["ladder"]
    if not rungs:
        what = "No fix made the program faster, so there is no ladder."
        how = "stepscope tune --budget 30m --allow semantic tries more."
        return Section("ladder", "The ladder", (_table(document), Missing(what, how)))
    blocks: list[Block] = [_table(document), _so_far(document)]
    if any(rung["predicted_speedup"] is not None for rung in rungs):
        blocks.append(_predicted(rungs))
    return Section("ladder", "The ladder", tuple(blocks))


def _table(document: Document) -> Table:
    """As it is read: intervals in words."""
    columns = (
        Column("rung"), Column("kind"), Column("step", "ms", number=True),
        Column("samples/s", number=True, digits=4), Column("speedup", "×", number=True),
        Column("so far", "×", number=True), Column("95%"),
        Column("predicted", "×", number=True), Column("range"), Column("losses"),
    )  # fmt: skip
    base = document["baseline"]
    first: tuple[Cell, ...] = (
        BASELINE_LABEL, "", base.get("step_ms"), base.get("samples_per_s"), 1.0, 1.0, "", None, "",
        "baseline",
    )  # fmt: skip
    return Table("ladder", columns, (first, *(_row(rung) for rung in document["ladder"])))


def _row(rung: Document) -> tuple[Cell, ...]:
    total, told, proof = rung["cumulative"], rung["predicted"] or {}, rung["proof"]
    return (
        f"+ {rung['label']}", rung["kind"], rung.get("step_ms"), rung.get("samples_per_s"),
        rung["speedup"], total["speedup"], _interval(total),
        told.get("speedup"), _interval(told), proof["words"] if proof else "not proven",
    )  # fmt: skip


def _interval(found: Document) -> str:
    return f"{found['low']:.2f}–{found['high']:.2f}" if found.get("low") is not None else ""


def _so_far(document: Document) -> Chart:
    totals = [rung["cumulative"] for rung in document["ladder"]]
    labels = [BASELINE_LABEL, *(f"+ {rung['label']}" for rung in document["ladder"])]
    values, low, high = (
        [1.0, *(total[key] for total in totals)] for key in ("speedup", "low", "high")
    )
    series = Series("", labels, values, low=low, high=high)
    title = "Speedup so far, with its 95% interval"
    return Chart("ladder-chart", "bars", title, (series,), y=Axis("times as fast"), across=True)


def _predicted(rungs: list[Document]) -> Chart:
    """Side by side, so that the eye compares them."""
    labels = [rung["label"] for rung in rungs]
    told = [rung["predicted"] or {} for rung in rungs]
    made = tuple(
        Series(
            name,
            labels,
            [one.get("speedup") or nan for one in rows],
            low=[one.get("low") or nan for one in rows],
            high=[one.get("high") or nan for one in rows],
        )
        for name, rows in (("predicted", told), ("measured", rungs))
    )
    title = "Each fix: predicted and measured"
    return Chart("predicted", "bars", title, made, y=Axis("times as fast"), across=True)


def _resources_section(document: Document) -> Section:
    """What each rung takes of the machine; columns that nothing is known of are left out."""
    rows = [(BASELINE_LABEL, document["baseline"])]
    rows += [(f"+ {rung['label']}", rung) for rung in document["ladder"]]
    kept = [(key, column, by) for key, column, by in _TAKEN if any(row.get(key) for _, row in rows)]
    if not kept:
        return Section("resources", "What it takes", ())
    cells = tuple((name, *(_scaled(row.get(key), by) for key, _, by in kept)) for name, row in rows)
    columns = (Column("rung"), *(column for _, column, _ in kept))
    return Section("resources", "What it takes", (Table("resources", columns, cells),))


_TAKEN = (
    ("gpu_busy", Column("GPU busy", number=True, percent=True), 1.0),
    ("peak_memory_bytes", Column("peak memory", "MiB", number=True, digits=4), 2.0**-20),
    ("energy_j_per_sample", Column("energy", "J/sample", number=True), 1.0),
    ("cost_per_million", Column("cost", "per million samples", number=True), 1.0),
    ("compile_s", Column("compiling", "s", number=True), 1.0),
    ("pays_after_steps", Column("pays after", "steps", number=True), 1),
)


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


_STATES = {
    "not_better": "not faster",
    "not_allowed": "not allowed",
    "unsettled": "not settled",
    "left_out": "not tried",
    "not_applicable": "not applicable",
    "out_of_memory": "out of memory",
    "timed_out": "timed out",
    "wrote_outside": "wrote outside its folder",
}


def _rejected_section(document: Document) -> Section:
    """Fixes that were tried first, then those that were never worth a trial."""
    tried = [one for one in document["rejected"] if one["state"] != "left_out"]
    others = [one for one in document["rejected"] if one["state"] == "left_out"]
    blocks: list[Block] = []
    if tried:
        columns = (
            Column("fix"), Column("outcome"), Column("speedup", "×", number=True),
            Column("low", "×", number=True), Column("high", "×", number=True), Column("why"),
        )  # fmt: skip
        rows = tuple(
            (
                one["fix"], _STATES.get(one["state"], one["state"]), one["speedup"],
                one.get("low"), one.get("high"), one["why"],
            )
            for one in tried
        )  # fmt: skip
        blocks.append(Table("rejected", columns, rows, "Tried and not kept"))
    if others:
        cells = tuple((one["fix"], why_not_tried(one)) for one in others)
        blocks.append(Table("left-out", (Column("fix"), Column("why")), cells, "Not tried"))
    if document["untried"]:
        names = ", ".join(document["untried"])
        how = "stepscope tune --resume FOLDER --budget 30m goes on."
        blocks.append(Missing(f"It did not come to {names}.", how))
    return Section("rejected", "What was not kept", tuple(blocks))


def story_of_tune(subject: LoadedResult) -> Story:
    """Everything a tune came to."""
    document = subject.document
    sections = (
        _summary(document),
        _ladder_section(document),
        proof_section(document, subject.folder),
        _resources_section(document),
        _rejected_section(document),
        _apply(document),
        _environment(document),
    )
    return Story(
        title=f"tune of {display_path(document['run']['program'])}",
        verdict=claim(document)[0],
        subtitle=_subtitle(document),
        sections=tuple(part for part in sections if part.blocks),
        kind="tune",
    )


def _subtitle(document: Document) -> str:
    run = document["run"]
    torch = str(run["torch"]).partition("+")[0]
    parts = [
        display_path(run["program"]),
        run["device_name"],
        f"torch {torch}",
        f"{plural(document['trials'], 'trial')} in {format_duration(document['seconds'])}",
        str(run.get("finished") or "")[:16].replace("T", " "),
        run["id"],
    ]
    return " · ".join(str(part) for part in parts if part)


def _summary(document: Document) -> Section:
    before, after = _sides(document)
    pairs = []
    for name, key, shown in _FIGURES:
        values = [side.get(key) for side in (before, after)]
        if values[0] is not None:
            words = " → ".join(shown(value) for value in values if value is not None)
            pairs.append((name, words))
    pairs.append(("trials", f"{document['trials']:,} in {format_duration(document['seconds'])}"))
    blocks: list[Block] = [Facts(tuple(pairs))]
    if text := stop_reason(document):
        blocks.append(Paragraph(f"{text[:1].upper()}{text[1:]}."))
    return Section("summary", "At a glance", tuple(blocks))


_FIGURES = (
    ("step", "step_ms", lambda value: f"{format_number(value)} ms"),
    ("samples per second", "samples_per_s", format_number),
    ("GPU busy", "gpu_busy", lambda value: f"{value:.0%}"),
    ("energy of a sample", "energy_j_per_sample", lambda value: f"{value:.3g} J"),
    ("cost of a million samples", "cost_per_million", lambda value: f"{value:.3g}"),
)


def _sides(document: Document) -> tuple[Document, Document]:
    """Before and after: as fresh trials measured them where there were any."""
    final = (document["final"] or {}).get("measured")
    if final:
        return final["baseline"], final["ladder"]
    last = document["ladder"][-1] if document["ladder"] else {}
    return document["baseline"], last


def _apply(document: Document) -> Section:
    """How to run it so today, and the edits that keep it."""
    blocks: list[Block] = []
    if document["command"]:
        blocks += [Paragraph("Run it so, with nothing edited:"), Code(document["command"], "sh")]
    patch = document["patch"]
    if patch is not None and patch.get("text"):
        blocks.append(Paragraph(_checked(patch)))
        blocks.append(Code(patch["text"], "diff"))
    for one in (patch or {}).get("by_hand", ()):
        blocks.append(Paragraph(f"By hand, {one['fix']}: {one['words']}"))
    if document["command"] and not (patch or {}).get("text"):
        why = (patch or {}).get("why") or "no edit of the source is known for these fixes"
        blocks.append(Missing("There is no patch.", f"{why[:1].upper()}{why[1:]}."))
    return Section("keep", "Keep it", tuple(blocks))


def _checked(patch: Document) -> str:
    edits = plural(len(patch["edits"]), "edit")
    if patch.get("speedup") is None:
        return f"The same as {edits} of the source ({patch.get('why') or 'not measured'}):"
    interval = f"{patch['low']:.2f}–{patch['high']:.2f}"
    found = f"{patch['speedup']:.2f}× ({interval}, {patch['verdict']})"
    return f"The same as {edits} of the source, applied and measured: {found}."


def _environment(document: Document) -> Section:
    run, asked = document["run"], document["request"]
    shown = (
        ("program", " ".join(map(str, (run["program"], *run["argv"])))),
        ("finished", run.get("finished")),
        ("git", run.get("git")),
        ("Python", run.get("python")),
        ("torch", run.get("torch")),
        ("stepscope", run.get("stepscope")),
        ("tune", run.get("id")),
    )
    limits = (
        ("fixes may change", asked.get("allow")),
        ("objective", asked.get("objective")),
        ("only", ", ".join(asked.get("only") or ()) or None),
        ("left out", ", ".join(asked.get("skip") or ()) or None),
        ("seeds of the proof", asked.get("seeds")),
        ("budget", format_duration(asked["budget_s"]) if asked.get("budget_s") else None),
    )
    pairs = [(name, str(value)) for name, value in (*shown, *limits) if value is not None]
    blocks: list[Block] = [Facts(tuple(pairs))]
    if machine := machine_facts(document["machine"] or {}):
        blocks.append(Facts(tuple(machine)))
    blocks += [Paragraph(f"Note: {note}.") for note in document["notes"]]
    return Section("environment", "Environment", tuple(blocks))
