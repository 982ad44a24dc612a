"""The story of a tune: the ladder, what was rejected, the patch, and what each rung costs."""

import shlex
from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path
from typing import Any

from stepscope.record.trial import StopReason
from stepscope.record.units import format_duration, format_interval, format_number, plural
from stepscope.report.story.blocks import (
    Block,
    Cell,
    Chart,
    Code,
    Column,
    Command,
    Facts,
    Missing,
    Paragraph,
    Section,
    Series,
    Story,
    Table,
    Tone,
    Weight,
    scaled,
)
from stepscope.report.story.phrases import (
    display_path,
    joined,
    minute_text,
    path_from_here,
    torch_text,
)
from stepscope.report.story.summary import machine_facts
from stepscope.report.story.tune import words
from stepscope.report.story.tune.proof import proof_section
from stepscope.results.load import LoadedResult
from stepscope.stats.verdict import Verdict
from stepscope.tune.document import Measured, Tune
from stepscope.tune.request import TuneSettings

BASELINE_LABEL = "baseline"


def _ladder_section(tune: Tune) -> Section:
    """The ladder's table, baseline first, with intervals as text."""
    columns = (
        Column("rung"),
        Column("kind", priority=6),
        Column.numeric("step ms"),
        Column.numeric("samples/s", digits=4, priority=2),
        Column.numeric("speedup"),
        Column.numeric("total"),
        Column("95%", priority=4),
        Column.numeric("predicted", priority=3),
        Column("range", priority=5),
        Column("losses"),
    )
    speed: tuple[Cell, ...] = (tune.baseline.step_ms, tune.baseline.samples_per_s, 1.0, 1.0)
    rows: list[tuple[Cell, ...]] = [(BASELINE_LABEL, "", *speed, "", None, "", "")]
    for rung in tune.ladder:
        total, predicted = rung.cumulative, rung.predicted
        speed = (rung.step_ms, rung.samples_per_s, rung.speedup, total.speedup)
        told: tuple[Cell, ...] = (None, "")
        if predicted is not None:
            told = (predicted.speedup, _interval(predicted.low, predicted.high))
        losses = "not proven" if rung.proof is None else rung.proof.state
        around = _interval(total.low, total.high)
        rows.append((f"+ {rung.label}", rung.kind, *speed, around, *told, losses))
    table = Table("ladder", columns, tuple(rows))
    known = tune.ladder or tune.baseline.step_ms is not None
    blocks: list[Block] = [table.without_empty_columns()] if known else []
    final = tune.final
    if final is not None and final.speedup is not None:
        ours, theirs = final.processes or (0, 0)
        fresh = f"{ours} + {theirs} fresh trials" if ours and theirs else "fresh trials"
        source = f"As measured while searching; the speedup above is from {fresh}."
        blocks.append(Paragraph(source, tone=Tone.QUIET))
    if tried := words.in_place_sentence(tune):
        blocks.append(Paragraph(tried, tone=Tone.QUIET))
    return Section("ladder", "Ladder", tuple(blocks), Weight.LEAD)


def _charts_section(tune: Tune) -> Section:
    if not tune.ladder:
        return Section("gains", "Gains", ())
    keys, rungs = ("speedup", "low", "high"), tune.ladder
    labels = [BASELINE_LABEL, *(f"+ {rung.label}" for rung in rungs)]
    values, low, high = ([1.0, *(getattr(one.cumulative, key) for one in rungs)] for key in keys)
    series = Series("", labels, values, low=low, high=high)
    title = "Total speedup, with its 95% interval"
    charts = [Chart.bars("ladder-chart", title, series, unit="speedup")]
    if any(rung.predicted_speedup is not None for rung in rungs):
        # Side by side, for comparison by eye.
        sides = []
        for name, rows in (("predicted", [rung.predicted for rung in rungs]), ("measured", rungs)):
            values, low, high = ([getattr(one, key, None) or nan for one in rows] for key in keys)
            sides.append(Series(name, [one.label for one in rungs], values, low=low, high=high))
        title = "Each fix: predicted and measured"
        charts.append(Chart.bars("predicted", title, *sides, unit="speedup"))
    return Section("gains", "Gains", tuple(charts))


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else format_interval(low, high)


def _resources_section(tune: Tune) -> Section:
    rows: list[tuple[str, Measured]] = [(BASELINE_LABEL, tune.baseline)]
    rows += [(f"+ {rung.label}", rung) for rung in tune.ladder]

    def measured(key: str, by: float = 1) -> Callable[[tuple[str, Measured]], Cell]:
        return lambda row: scaled(getattr(row[1], key, None) or None, by)

    memory = Column.numeric("peak memory", "MiB", digits=4)
    table = Table.of(
        "resources",
        "",
        rows,
        (Column("rung"), lambda row: row[0]),
        (Column.share("GPU busy"), measured("gpu_busy")),
        (memory, measured("peak_memory_bytes", 2.0**-20)),
        (Column.numeric("energy", "J/sample"), measured("energy_j_per_sample")),
        (Column.numeric("cost", "per million samples"), measured("cost_per_million")),
        (Column.numeric("compiling", "s", priority=1), measured("compile_s")),
        (Column.numeric("pays off after", "steps", priority=1), measured("pays_after_steps")),
    ).without_empty_columns()
    blocks = (table,) if len(table.columns) > 1 else ()
    return Section("resources", "Resources", blocks, Weight.LEAD)


def _rejected_section(tune: Tune) -> Section:
    """Fixes that were tried and not kept, each with its reason."""
    objective = tune.request.objective
    tried = [one for one in tune.rejected if words.is_tried(one)]
    pairs = tuple((f"− {one.fix}", words.rejection_text(one, objective)) for one in tried)
    blocks: list[Block] = [Facts(pairs)] if pairs else []
    for why, names in words.not_tried_groups(tune):
        told = f"{'Not tried, ' if tried else ''}{why}: {', '.join(names)}"
        blocks.append(Paragraph(told, tone=Tone.QUIET))
    title = "Not kept" if tried else "Not tried"
    return Section("rejected", title, tuple(blocks), Weight.LEAD)


def _measured_rejections(tune: Tune) -> Section:
    states = {"not_better": "not faster"}
    blocks = Table.known(
        "rejected",
        "",
        [one for one in tune.rejected if one.speedup is not None],
        (Column("fix"), lambda one: one.fix),
        (Column("outcome"), lambda one: states.get(one.state) or one.state.replace("_", " ")),
        (Column.numeric("speedup", "×"), lambda one: one.speedup),
        (Column("95%"), lambda one: _interval(one.low, one.high)),
    )
    return Section("rejected-measured", "Measured and not kept", tuple(blocks), Weight.DETAIL)


def _contests(tune: Tune) -> Section:
    blocks = Table.known(
        "contests",
        "",
        tune.contests,
        (Column("fix"), lambda one: " + ".join(one.candidate)),
        (Column("compared"), lambda one: "in place" if one.in_place else "by trials"),
        (Column.numeric("speedup", "×"), lambda one: one.ratio),
        (Column.numeric("low", "×"), lambda one: one.low),
        (Column.numeric("high", "×"), lambda one: one.high),
        (Column.numeric("steps", digits=6), lambda one: one.steps),
        (Column.numeric("time", "s"), lambda one: one.seconds),
    )
    return Section("contests", "Compared with what was kept", tuple(blocks), Weight.DETAIL)


def story_of_tune(subject: LoadedResult) -> Story:
    """The full story of a tune."""
    return tune_story(subject.decoded(Tune), subject.folder)


def tune_story(tune: Tune, folder: Path | None = None) -> Story:
    """The same for a result; `folder` holds its journal."""
    run = tune.run
    sections = (
        _summary(tune),
        _ladder_section(tune),
        _rejected_section(tune),
        _resources_section(tune),
        _remarks(tune),
        _charts_section(tune),
        proof_section(tune, folder),
        _measured_rejections(tune),
        _contests(tune),
        _apply(tune),
        _environment(tune),
    )
    return Story(
        title=f"tune of {display_path(run.program)}",
        verdict=words.claim(tune)[0],
        subtitle=joined(run.device_name, torch_text(run.torch), minute_text(run.finished), run.id),
        sections=tuple(part for part in sections if part.blocks),
        kind="tune",
        next=_next(tune),
    )


def _summary(tune: Tune) -> Section:
    """Before and after, from fresh trials if there were any."""
    sides: list[Measured] = [tune.baseline, tune.ladder[-1] if tune.ladder else Measured()]
    if tune.final is not None and tune.final.measured is not None:
        sides = [tune.final.measured.baseline, tune.final.measured.ladder]
    pairs = []
    for name, key, shown in _FIGURES:
        values = [getattr(side, key) for side in sides]
        if values[0] is not None:
            pairs.append((name, " → ".join(shown(value) for value in values if value is not None)))
    pairs.append(("trials", f"{tune.trials:,} in {format_duration(tune.seconds)}"))
    return Section("summary", "At a glance", (Facts(tuple(pairs)),))


_FIGURES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("step", "step_ms", lambda value: f"{format_number(value)} ms"),
    ("samples per second", "samples_per_s", format_number),
    ("GPU busy", "gpu_busy", lambda value: f"{value:.0%}"),
    ("energy per sample", "energy_j_per_sample", lambda value: f"{value:.3g} J"),
    ("cost per million samples", "cost_per_million", lambda value: f"{value:.3g}"),
)


def _remarks(tune: Tune) -> Section:
    blocks: list[Block] = [Paragraph(text) for text in words.coverage_sentences(tune)]
    blocks += [
        Paragraph(f"Note: {words.note_sentence(one)}.", tone=Tone.WARN) for one in tune.notes
    ]
    if stopped := words.stop_sentence(tune):
        blocks.append(Paragraph(stopped, tone=Tone.WARN))
    by_hand = tune.patch.by_hand if tune.patch is not None else ()
    blocks += [Paragraph(f"By hand, {one.fix}: {one.words}") for one in by_hand]
    blocks.append(Paragraph(f"Trials: {path_from_here(tune.run.folder)}", tone=Tone.QUIET))
    return Section("remarks", "Remarks", tuple(blocks), Weight.LEAD)


def _next(tune: Tune) -> tuple[Command, ...]:
    """Commands to run with the fixes, and to apply them to the source."""
    found = []
    if tune.command:
        faster = tune.final is not None and tune.final.verdict is Verdict.FASTER
        purpose = "" if faster else "not confirmed: try it"
        found.append(Command(tune.command, purpose, "Run"))
    if tune.untried or tune.stopped is StopReason.INTERRUPTED:
        found.append(Command(_resume_command(tune), "", "Resume"))
    proof = tune.final.proof if tune.final is not None else None
    settle = None if proof is None else proof.settle
    if settle is not None and settle.seeds is not None:
        seconds = max(60.0, 1.5 * (settle.seconds or 600.0))
        run = tune.run
        command = resume_command(tune.request, run.program, run.argv, run.folder, seconds, True)
        found.append(Command(command, "", "Prove"))
    patch = tune.patch
    if patch is not None and patch.path:
        worth = words.is_worth_applying(patch, tune.final)
        apply = f"git apply {shlex.quote(patch.path)}"
        told = words.patch_text(patch, worth, tune.final)
        found.append(Command(apply, told, "Apply" if worth else "Patch"))
    return tuple(found)


def _resume_command(tune: Tune) -> str:
    """The same tune, with twice the budget where it was exhausted."""
    times, run = 1 if tune.stopped is StopReason.INTERRUPTED else 2, tune.run
    budget_s = times * (tune.request.budget_s or 600.0)
    return resume_command(tune.request, run.program, run.argv, run.folder, budget_s)


def resume_command(
    asked: TuneSettings,
    program: str,
    argv: Sequence[str],
    folder: str,
    budget_s: float,
    prove: bool = False,
) -> str:
    """The command that continues a tune, or only its proof. A journal accepts the same options
    only."""
    usual = {"allow": "numeric", "objective": "throughput", "seeds": 3}
    command = ["stepscope", "tune", "--resume", path_from_here(folder)]
    command += ["--prove"] if prove else []
    command += ["--budget", f"{budget_s:.0f}s"]
    for name in ("allow", "objective", "steps", "seeds", "on"):
        if (value := getattr(asked, name)) not in (None, usual.get(name)):
            command += [f"--{name}", str(value)]
    for name in ("only", "skip"):
        command += [f"--{name}", ",".join(value)] if (value := getattr(asked, name)) else []
    command += ["--allow-writes"] if asked.allow_writes else []
    command += ["--unguarded"] if asked.unguarded else []
    target = ["-m", program[3:]] if program.startswith("-m ") else [program]
    return shlex.join([*command, *target, *argv])


def _apply(tune: Tune) -> Section:
    """The command that applies the fixes at run time, and the edits that make them permanent."""
    blocks: list[Block] = []
    if tune.command:
        blocks += [Paragraph("Run with the fixes, without editing:"), Code(tune.command, "sh")]
    patch = tune.patch
    if patch is not None and patch.text:
        told = f"The same in {plural(len(patch.edits), 'source edit')}"
        if patch.speedup is None:
            told += f" ({words.patch_status_text(patch)}):"
        else:
            interval = _interval(patch.low, patch.high)
            told += f"; the patched program alone: {patch.speedup:.2f}× ({interval})."
        blocks += [Paragraph(told), Code(patch.text, "diff")]
    elif tune.command:
        why = "none is known for these fixes" if patch is None else words.patch_status_text(patch)
        blocks.append(Missing("No patch.", f"Source edits: {why}."))
    return Section("keep", "Apply", tuple(blocks))


def _environment(tune: Tune) -> Section:
    run, asked = tune.run, tune.request
    facts = Facts.known(
        ("program", " ".join((run.program, *run.argv))),
        ("finished", run.finished),
        ("git", run.git),
        ("Python", run.python),
        ("torch", run.torch),
        ("stepscope", run.stepscope),
        ("tune", run.id),
        ("fixes may change", asked.allow),
        ("objective", asked.objective),
        ("only", ", ".join(asked.only) or None),
        ("skipped", ", ".join(asked.skip) or None),
        ("proof seeds", asked.seeds),
        ("budget", format_duration(asked.budget_s) if asked.budget_s else None),
    )
    machine = machine_facts(tune.machine or {})
    blocks = (facts, Facts(machine)) if machine else (facts,)
    return Section("environment", "Environment", blocks, Weight.DETAIL)
