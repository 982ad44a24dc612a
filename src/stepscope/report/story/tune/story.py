"""The story of a tune: the ladder, what was rejected, the patch, and what each rung costs."""

import shlex
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

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
    bar_chart,
    known_facts,
    number_column,
    scaled,
    share_column,
    table_of,
    table_without_empty_columns,
)
from stepscope.report.story.phrases import (
    display_path,
    joined,
    minute_text,
    path_from_here,
    torch_text,
)
from stepscope.report.story.summary import machine_facts
from stepscope.report.story.tune.proof import proof_section
from stepscope.report.story.tune.words import (
    claim,
    coverage_sentences,
    is_tried,
    is_worth_applying,
    not_tried_groups,
    note_sentence,
    patch_status_text,
    patch_text,
    rejection_text,
    stop_sentence,
)
from stepscope.results.load import LoadedResult, decode
from stepscope.stats.verdict import Verdict
from stepscope.tune.document import Measured, Tune, TunedRung

BASELINE_LABEL = "baseline"


def _ladder_section(tune: Tune) -> Section:
    """The table with the baseline in its first row; intervals in words."""
    columns = (
        Column("rung"),
        Column("kind", priority=6),
        number_column("step ms"),
        number_column("samples/s", digits=4, priority=2),
        number_column("speedup"),
        number_column("total"),
        Column("95%", priority=4),
        number_column("predicted", priority=3),
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
    blocks: list[Block] = [table_without_empty_columns(table)]
    if not tune.ladder:
        how = "stepscope tune --budget 30m --allow semantic tries more."
        blocks.append(Missing("No fix made the program faster.", how))
    return Section("ladder", "Ladder", tuple(blocks), Weight.LEAD)


def _charts_section(tune: Tune) -> Section:
    if not tune.ladder:
        return Section("gains", "Gains", ())
    totals = [rung.cumulative for rung in tune.ladder]
    labels = [BASELINE_LABEL, *(f"+ {rung.label}" for rung in tune.ladder)]
    values, low, high = (
        [1.0, *(getattr(total, key) for total in totals)] for key in ("speedup", "low", "high")
    )
    series = Series("", labels, values, low=low, high=high)
    title = "Total speedup, with its 95% interval"
    charts = [bar_chart("ladder-chart", title, series, unit="speedup")]
    if any(rung.predicted_speedup is not None for rung in tune.ladder):
        charts.append(_predicted(tune.ladder))
    return Section("gains", "Gains", tuple(charts))


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else format_interval(low, high)


def _predicted(rungs: tuple[TunedRung, ...]) -> Chart:
    """Side by side, so that the eye compares them."""
    labels = [rung.label for rung in rungs]
    series = []
    for name, rows in (("predicted", [rung.predicted for rung in rungs]), ("measured", rungs)):
        values, low, high = (
            [getattr(one, key, None) or nan for one in rows] for key in ("speedup", "low", "high")
        )
        series.append(Series(name, labels, values, low=low, high=high))
    return bar_chart("predicted", "Each fix: predicted and measured", *series, unit="speedup")


def _resources_section(tune: Tune) -> Section:
    """What each rung takes of the machine."""
    rows: list[tuple[str, Measured]] = [(BASELINE_LABEL, tune.baseline)]
    rows += [(f"+ {rung.label}", rung) for rung in tune.ladder]
    cells = tuple(
        (name, *(scaled(getattr(row, key, None) or None, by) for key, _, by in _RESOURCES))
        for name, row in rows
    )
    columns = (Column("rung"), *(column for _, column, _ in _RESOURCES))
    table = table_without_empty_columns(Table("resources", columns, cells))
    blocks = (table,) if len(table.columns) > 1 else ()
    return Section("resources", "Resources", blocks, Weight.LEAD)


_RESOURCES = (
    ("gpu_busy", share_column("GPU busy"), 1.0),
    ("peak_memory_bytes", number_column("peak memory", "MiB", digits=4), 2.0**-20),
    ("energy_j_per_sample", number_column("energy", "J/sample"), 1.0),
    ("cost_per_million", number_column("cost", "per million samples"), 1.0),
    ("compile_s", number_column("compiling", "s", priority=1), 1.0),
    ("pays_after_steps", number_column("pays off after", "steps", priority=1), 1),
)


def _rejected_section(tune: Tune) -> Section:
    """Fixes that were tried and not kept, with the reason of each."""
    objective = tune.request.objective
    tried = [one for one in tune.rejected if is_tried(one)]
    pairs = tuple((f"− {one.fix}", rejection_text(one, objective)) for one in tried)
    blocks: list[Block] = [Facts(pairs)] if pairs else []
    for why, names in not_tried_groups(tune):
        blocks.append(Paragraph(f"Not tried, {why}: {', '.join(names)}", tone=Tone.QUIET))
    return Section("rejected", "Not kept", tuple(blocks), Weight.LEAD)


def _measured_rejections(tune: Tune) -> Section:
    states = {"not_better": "not faster"}
    blocks = table_of(
        "rejected",
        "",
        [one for one in tune.rejected if one.speedup is not None],
        (Column("fix"), lambda one: one.fix),
        (Column("outcome"), lambda one: states.get(one.state) or one.state.replace("_", " ")),
        (number_column("speedup", "×"), lambda one: one.speedup),
        (number_column("low", "×"), lambda one: one.low),
        (number_column("high", "×"), lambda one: one.high),
    )
    return Section("rejected-measured", "Measured and not kept", tuple(blocks), Weight.DETAIL)


def story_of_tune(subject: LoadedResult) -> Story:
    """Everything a tune came to."""
    return tune_story(decode(subject.document, Tune), subject.folder)


def tune_story(tune: Tune, folder: Path | None = None) -> Story:
    """The same of a result; `folder` is where its journal lies."""
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
        _apply(tune),
        _environment(tune),
    )
    return Story(
        title=f"tune of {display_path(run.program)}",
        verdict=claim(tune)[0],
        subtitle=joined(run.device_name, torch_text(run.torch), minute_text(run.finished), run.id),
        sections=tuple(part for part in sections if part.blocks),
        kind="tune",
        next=_next(tune),
    )


def _summary(tune: Tune) -> Section:
    """Before and after: as fresh trials measured them where there were any."""
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
    """What to know about the result, on the default screen."""
    blocks: list[Block] = [Paragraph(words) for words in coverage_sentences(tune)]
    blocks += [Paragraph(f"Note: {note_sentence(one)}.", tone=Tone.WARN) for one in tune.notes]
    if words := stop_sentence(tune):
        blocks.append(Paragraph(words, tone=Tone.WARN))
    by_hand = tune.patch.by_hand if tune.patch is not None else ()
    blocks += [Paragraph(f"By hand, {one.fix}: {one.words}") for one in by_hand]
    blocks.append(Paragraph(f"Trials: {path_from_here(tune.run.folder)}", tone=Tone.QUIET))
    return Section("remarks", "Remarks", tuple(blocks), Weight.LEAD)


def _next(tune: Tune) -> tuple[Command, ...]:
    """How to run it with the fixes today, and how to put them into the source."""
    found = []
    if tune.command:
        faster = tune.final is not None and tune.final.verdict is Verdict.FASTER
        purpose = "" if faster else "not confirmed: try it"
        found.append(Command(tune.command, purpose, "Run"))
    if tune.untried:
        found.append(Command(_resume_command(tune), "", "Resume"))
    patch = tune.patch
    if patch is not None and patch.path:
        worth = is_worth_applying(patch, tune.final)
        apply = f"git apply {shlex.quote(patch.path)}"
        found.append(Command(apply, patch_text(patch, worth), "Apply" if worth else "Patch"))
    return tuple(found)


def _resume_command(tune: Tune) -> str:
    """The same tune with twice the budget: a journal takes the same options only."""
    asked = tune.request
    words = ["stepscope", "tune", "--resume", path_from_here(tune.run.folder)]
    words += ["--budget", f"{2 * (asked.budget_s or 600.0):.0f}s"]
    for name in ("allow", "objective", "steps", "seeds", "on"):
        if (value := getattr(asked, name)) not in (None, _DEFAULTS.get(name)):
            words += [f"--{name}", str(value)]
    for name in ("only", "skip"):
        words += [f"--{name}", ",".join(value)] if (value := getattr(asked, name)) else []
    words += ["--allow-writes"] if asked.allow_writes else []
    module = tune.run.program.startswith("-m ")
    program = ["-m", tune.run.program[3:]] if module else [tune.run.program]
    return shlex.join([*words, *program, *tune.run.argv])


_DEFAULTS = {"allow": "numeric", "objective": "throughput", "seeds": 3}


def _apply(tune: Tune) -> Section:
    """The command that applies the fixes at run time, and the edits that keep them."""
    blocks: list[Block] = []
    if tune.command:
        blocks += [Paragraph("Run with the fixes, without editing:"), Code(tune.command, "sh")]
    patch = tune.patch
    if patch is not None and patch.text:
        told = f"The same in {plural(len(patch.edits), 'source edit')}"
        if patch.speedup is None:
            told += f" ({patch_status_text(patch)}):"
        else:
            interval = _interval(patch.low, patch.high)
            told += f", measured: {patch.speedup:.2f}× ({interval}, {patch.verdict})."
        blocks += [Paragraph(told), Code(patch.text, "diff")]
    elif tune.command:
        why = "none is known for these fixes" if patch is None else patch_status_text(patch)
        blocks.append(Missing("No patch.", f"Source edits: {why}."))
    return Section("keep", "Apply", tuple(blocks))


def _environment(tune: Tune) -> Section:
    run, asked = tune.run, tune.request
    facts = known_facts(
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
