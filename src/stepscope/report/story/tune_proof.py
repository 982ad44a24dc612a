"""The proof of a tune: that training does the same, with the losses and the control to see it."""

from pathlib import Path
from typing import Any

import numpy as np

from stepscope.report.story.blocks import (
    Axis,
    Block,
    Chart,
    Column,
    Facts,
    Missing,
    Say,
    Section,
    Series,
    Table,
)
from stepscope.report.story.thin import extremes, thinned
from stepscope.report.story.tune_curves import BASE, CONTROL, VARIANT, proof_curves
from stepscope.report.tune_words import covered

Document = dict[str, Any]
_LINES = {BASE: "as it is", CONTROL: "control: weights rounded once", VARIANT: "with the fixes"}


def proof_section(document: Document, folder: Path | None) -> Section:
    """Nothing where no ladder was to be proven."""
    if not document["ladder"]:
        return Section("proof", "The proof", ())
    proof = (document["final"] or {}).get("proof") or document["ladder"][-1]["proof"]
    blocks: list[Block] = []
    if proof is None:
        what = "Losses were not compared."
        blocks.append(Missing(what, "A tune with more --budget proves what it keeps."))
    else:
        blocks.append(Say(f"Losses: {proof['words']}.", strong=True))
        if numbers := _numbers(proof["numbers"]):
            blocks.append(Facts(numbers))
    blocks += [Say(words) for words in covered(document)]
    chart = _chart(proof_curves(document, proof, folder))
    return Section("proof", "The proof", (*blocks, *([chart] if chart else []), *_each(document)))


def _numbers(numbers: Document) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
        for name, value in numbers.items()
        if value is not None
    )


def _chart(curves: dict[str, list[list[float]]]) -> Chart | None:
    """The mean over seeds of each, with the span from the lowest to the highest seed."""
    series, most, seeds = [], 0, 0
    for name, label in _LINES.items():
        found = curves.get(name) or []
        steps = min(map(len, found), default=0)
        if not steps:
            continue
        losses = np.array([one[:steps] for one in found], float)
        mean = losses.mean(axis=0)
        at = extremes(mean)
        low, high = losses.min(axis=0)[at], losses.max(axis=0)[at]
        several = len(found) > 1
        series.append(
            Series(
                label,
                (at + 1).tolist(),
                mean[at].tolist(),
                low=low.tolist() if several else (),
                high=high.tolist() if several else (),
            )
        )
        most, seeds = max(most, steps), max(seeds, len(found))
    if not series:
        return None
    band = f"Means of {seeds} seeds; the band spans them." if seeds > 1 else ""
    note = " ".join(part for part in (band, thinned(most, "steps")) if part)
    return Chart(
        "proof-losses", "line", "Losses with the fixes and without", tuple(series),
        Axis("step"), Axis("loss"), note=note,
    )  # fmt: skip


def _each(document: Document) -> list[Block]:
    """What was proven of each rung."""
    rows = tuple(
        (rung["label"], rung["kind"], (rung["proof"] or {}).get("state") or "not proven",
         (rung["proof"] or {}).get("words"), (rung["proof"] or {}).get("steps"),
         (rung["proof"] or {}).get("seeds"))
        for rung in document["ladder"]
    )  # fmt: skip
    columns = (
        Column("rung"), Column("kind"), Column("losses"), Column("in words"),
        Column("steps", number=True), Column("seeds", number=True),
    )  # fmt: skip
    return [Table("proofs", columns, rows, "Rung by rung")]
