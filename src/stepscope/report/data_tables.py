"""What lies behind a report, as tables with every number: steps, findings, the ladder."""

from typing import Any

from stepscope.report.story.blocks import Cell, Column, Table
from stepscope.report.subject import Subject


def steps_table(subject: Subject) -> Table | None:
    """One row a step of a run; None where no steps were seen."""
    tables = subject.tables()
    if tables is None or tables.steps is None:
        return None
    steps = tables.steps
    names = list(steps.host)
    columns = (
        Column("step", number=True), Column("time", "ms", number=True),
        *(Column(name, "ms", number=True) for name in names),
        Column("samples", number=True), Column("loss", number=True), Column("recorded"),
        Column("warm-up"),
    )  # fmt: skip
    times = [steps.done() / 1e6, *(steps.host[name] / 1e6 for name in names)]
    rows = tuple(
        (
            at + 1, *(float(one[at]) for one in times), float(steps.samples[at]),
            float(steps.loss[at]), bool(steps.in_window[at]), at < tables.warmup,
        )
        for at in range(len(steps))
    )  # fmt: skip
    return Table("steps", columns, rows, "Steps")


def findings_table(subject: Subject) -> Table | None:
    """One row a finding; None where nothing was diagnosed."""
    found = subject.document.get("findings")
    if found is None:
        return None
    columns = (
        Column("id"), Column("title"), Column("kind"), Column("share", number=True),
        Column("predicted step", "ms", number=True), Column("predicted", "×", number=True),
        Column("predicted low", "×", number=True), Column("predicted high", "×", number=True),
        Column("fix"), Column("confidence"), Column("effort"), Column("why"), Column("advice"),
    )  # fmt: skip
    rows = []
    for one in found:
        told, fix = one["predicted"] or {}, one["fix"]
        name = None if fix is None else "=".join(str(p) for p in fix.values() if p is not None)
        rows.append(
            (
                one["id"], one["title"], one["kind"], one["share"], told.get("step_ms"),
                told.get("speedup"), told.get("low"), told.get("high"), name,
                one["confidence"], one["effort"], one["why"], one["advice"],
            )
        )  # fmt: skip
    return Table("findings", columns, tuple(rows), "Findings")


def ladder_table(subject: Subject) -> Table | None:
    """One row a rung of a tune, the program as it is first; None of other kinds."""
    if subject.kind != "tune":
        return None
    columns = (
        Column("rung"), Column("fix"), Column("value"), Column("kind"),
        *(Column(name, unit, number=True) for name, unit in _MEASURED.values()),
        *(Column(name, "×", number=True) for name in _TIMES), Column("verdict"), Column("losses"),
    )  # fmt: skip
    base = subject.document["baseline"]
    first = ("as it is", None, None, None, *(base.get(key) for key in _MEASURED))
    empty = (1.0, None, None, 1.0, None, None, None, None, None, None, "baseline")
    rungs = tuple(_rung(one) for one in subject.document["ladder"])
    return Table("ladder", columns, ((*first, *empty), *rungs), "Ladder")


_MEASURED = {
    "step_ms": ("step", "ms"),
    "low_ms": ("step low", "ms"),
    "high_ms": ("step high", "ms"),
    "samples_per_s": ("samples/s", ""),
    "gpu_busy": ("GPU busy", ""),
    "peak_memory_bytes": ("peak memory", "bytes"),
    "energy_j_per_sample": ("energy", "J/sample"),
    "cost_per_million": ("cost", "per million samples"),
    "processes": ("processes", ""),
}
_TIMES = (
    "speedup", "speedup low", "speedup high", "so far", "so far low", "so far high",
    "predicted", "predicted low", "predicted high",
)  # fmt: skip


def _rung(one: dict[str, Any]) -> tuple[Cell, ...]:
    sides = (one, one["cumulative"], one["predicted"] or {})
    times = (side.get(key) for side in sides for key in ("speedup", "low", "high"))
    proof = one["proof"] or {}
    return (
        one["label"], one["fix"], one["params"].get("value"), one["kind"],
        *(one.get(key) for key in _MEASURED), *times, one["verdict"],
        proof.get("state") or "not proven",
    )  # fmt: skip
