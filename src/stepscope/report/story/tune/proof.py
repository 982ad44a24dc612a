"""The proof of a tune: that training does the same, with the losses and the control."""

from math import nan
from pathlib import Path
from typing import Any, Final

import numpy as np

from stepscope.measure.journal import JOURNAL_FILE
from stepscope.record.errors import StepscopeError
from stepscope.record.proof import Proof, ProofState
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
    number_column,
    table_of,
)
from stepscope.report.story.series import downsample_note, downsampled_indices
from stepscope.report.story.tune.words import proof_sentence, proof_text
from stepscope.store.json_lines import read_record_lines
from stepscope.tune.document import Tune

Curves = dict[str, list[list[float]]]
_BASELINE: Final = "baseline"
_CONTROL: Final = "control: weights rounded once"
_VARIANT: Final = "with the fixes"


def _proof_curves(tune: Tune, proof: Proof | None, folder: Path | None) -> Curves:
    """Losses per step, by line of the chart, a list per seed; from the result alone, without the
    control, where there is no journal."""
    wanted = set(proof.trials if proof is not None else ())
    found: Curves = {}
    for trial in _trials(folder) if wanted and folder is not None else ():
        if trial.get("number") in wanted and trial.get("losses"):
            found.setdefault(_line(trial["ask"]), []).append(_with_nan(trial["losses"]))
    if _BASELINE in found and _VARIANT in found:
        return found
    whole = {
        _BASELINE: tune.baseline.losses,
        _VARIANT: tune.ladder[-1].losses if tune.ladder else (),
    }
    return {name: [_with_nan(losses)] for name, losses in whole.items() if losses}


def _trials(folder: Path) -> list[dict[str, Any]]:
    """Records of the journal; none where it cannot be read."""
    try:
        records = read_record_lines(folder / JOURNAL_FILE, dict[str, Any], "")
        return [one["trial"] for one in records if "trial" in one]
    except (OSError, StepscopeError):
        return []


def _line(request: dict[str, Any]) -> str:
    if request.get("perturb"):
        return _CONTROL
    return _VARIANT if request.get("fixes") or request.get("patched") else _BASELINE


def _with_nan(losses: Any) -> list[float]:
    return [nan if loss is None else float(loss) for loss in losses]


def proof_section(tune: Tune, folder: Path | None) -> Section:
    """Nothing where no ladder was to be proven."""
    if not tune.ladder:
        return Section("proof", "Proof", ())
    proof = tune.final.proof if tune.final is not None else None
    proof = proof or tune.ladder[-1].proof
    blocks: list[Block] = []
    if proof is None:
        how = "A larger --budget leaves time to prove what is kept."
        blocks.append(Missing("Losses were not compared.", how))
    else:
        blocks.append(Paragraph(proof_sentence(proof), strong=True))
        if numbers := _numbers(proof.numbers):
            blocks.append(Facts(numbers))
    chart = _chart(_proof_curves(tune, proof, folder))
    return Section("proof", "Proof", (*blocks, *([chart] if chart else []), *_each(tune)))


def _numbers(numbers: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
        for name, value in numbers.items()
        if value is not None
    )


def _chart(curves: Curves) -> Chart | None:
    """The mean over seeds of each, with the span from the lowest to the highest seed."""
    series, most, seeds = [], 0, 0
    for label in (_BASELINE, _CONTROL, _VARIANT):
        found = curves.get(label) or []
        steps = min(map(len, found), default=0)
        if not steps:
            continue
        losses = np.array([one[:steps] for one in found], float)
        mean = losses.mean(axis=0)
        at = downsampled_indices(mean)
        spans = {"low": losses.min(axis=0), "high": losses.max(axis=0)} if len(found) > 1 else {}
        band = {name: values[at].tolist() for name, values in spans.items()}
        series.append(Series(label, (at + 1).tolist(), mean[at].tolist(), **band))
        most, seeds = max(most, steps), max(seeds, len(found))
    if not series:
        return None
    means = f"Means of {seeds} seeds; the band spans them." if seeds > 1 else ""
    note = " ".join(part for part in (means, downsample_note(most, "steps")) if part)
    return Chart(
        "proof-losses", "line", "Losses with the fixes and without", tuple(series),
        Axis("step"), Axis("loss"), note=note,
    )  # fmt: skip


def _each(tune: Tune) -> list[Block]:
    """What was proven of each rung."""
    unproven = Proof(ProofState.NOT_PROVEN)
    return table_of(
        "proofs",
        "Rung by rung",
        tune.ladder,
        (Column("rung"), lambda rung: rung.label),
        (Column("kind"), lambda rung: rung.kind),
        (Column("losses"), lambda rung: (rung.proof or unproven).state),
        (Column("details"), lambda rung: proof_text(rung.proof)),
        (number_column("steps"), lambda rung: (rung.proof or unproven).steps),
        (number_column("seeds"), lambda rung: (rung.proof or unproven).seeds),
    )
