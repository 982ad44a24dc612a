"""The proof of a tune: that training does the same, with the losses and the control."""

import json
from collections.abc import Iterator
from math import nan
from pathlib import Path
from typing import Any, Final

import numpy as np

from stepscope.report.story.blocks import (
    Axis,
    Block,
    Chart,
    Column,
    Facts,
    Missing,
    Paragraph,
    Section,
    Series,
    Table,
)
from stepscope.report.story.series import downsample_note, downsampled_indices
from stepscope.report.story.tune.words import coverage_sentences

Document = dict[str, Any]
Curves = dict[str, list[list[float]]]
_BASELINE: Final = "base"
_CONTROL: Final = "control"
_VARIANT: Final = "variant"
_JOURNAL: Final = "journal.jsonl"
_LARGEST: Final = 256 << 20  # bytes


def _proof_curves(document: Document, proof: Document | None, folder: Path | None) -> Curves:
    """Losses a step, by role, a list per seed; from the document alone where there is no journal.

    Of the control there is then nothing.
    """
    wanted = set((proof or {}).get("trials") or ())
    found: Curves = {}
    for trial in _trials(folder) if wanted and folder is not None else ():
        if trial.get("number") in wanted and trial.get("losses"):
            found.setdefault(_role(trial["ask"]), []).append(_with_nan(trial["losses"]))
    if _BASELINE in found and _VARIANT in found:
        return found
    whole = {
        _BASELINE: document["baseline"].get("losses"),
        _VARIANT: document["ladder"][-1].get("losses") if document["ladder"] else None,
    }
    return {role: [_with_nan(losses)] for role, losses in whole.items() if losses}


def _trials(folder: Path) -> Iterator[Document]:
    """Records of the journal; none of what cannot be read."""
    path = folder / _JOURNAL
    try:
        if path.stat().st_size > _LARGEST:
            return
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                if isinstance(record, dict) and isinstance(record.get("trial"), dict):
                    yield record["trial"]
    except (OSError, ValueError):
        return


def _role(ask: Document) -> str:
    if ask.get("perturb"):
        return _CONTROL
    return _VARIANT if ask.get("fixes") or ask.get("patched") else _BASELINE


def _with_nan(losses: list[float | None]) -> list[float]:
    return [nan if loss is None else float(loss) for loss in losses]


_LINES = {
    _BASELINE: "as it is",
    _CONTROL: "control: weights rounded once",
    _VARIANT: "with the fixes",
}


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
        blocks.append(Paragraph(f"Losses: {proof['words']}.", strong=True))
        if numbers := _numbers(proof["numbers"]):
            blocks.append(Facts(numbers))
    blocks += [Paragraph(words) for words in coverage_sentences(document)]
    chart = _chart(_proof_curves(document, proof, folder))
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
        at = downsampled_indices(mean)
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
    note = " ".join(part for part in (band, downsample_note(most, "steps")) if part)
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
