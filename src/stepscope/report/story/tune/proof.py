"""The proof of a tune: whether training does the same, with losses and control."""

from collections.abc import Iterable
from contextlib import suppress
from math import nan
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from stepscope.measure.journal import JOURNAL_FILE
from stepscope.measure.trial.record import TrialRequest
from stepscope.record.errors import StepscopeError
from stepscope.record.proof import Proof, ProofState
from stepscope.report.story.blocks import (
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
from stepscope.report.story.tune.words import proof_sentence, proof_text, settle_sentence
from stepscope.store.json_lines import read_record_lines
from stepscope.tune.document import Tune

Curves = dict[str, list[list[float]]]
_BASELINE: Final = "baseline"
_CONTROL: Final = "control: weights rounded once"
_VARIANT: Final = "with the fixes"


class _ProofTrial(Struct, frozen=True):
    ask: TrialRequest
    number: int
    losses: tuple[float | None, ...] = ()


class _JournalLine(Struct, frozen=True):
    trial: _ProofTrial | None = None


def _proof_curves(tune: Tune, proof: Proof | None, folder: Path | None) -> Curves:
    """Losses per step for each line of the chart, one list per seed; without a readable journal,
    from the result alone and without the control."""
    found: Curves = {}
    records: list[_JournalLine] = []
    with suppress(OSError, StepscopeError):
        if folder is not None and proof is not None and proof.trials:
            records = read_record_lines(folder / JOURNAL_FILE, _JournalLine, "")
    for trial in (one.trial for one in records if one.trial is not None):
        if proof is not None and trial.number in proof.trials and trial.losses:
            line = _VARIANT if trial.ask.fixes or trial.ask.patched else _BASELINE
            line = _CONTROL if trial.ask.perturb else line
            found.setdefault(line, []).append(_with_nan(trial.losses))
    if _BASELINE in found and _VARIANT in found:
        return found
    variant = tune.ladder[-1].losses if tune.ladder else ()
    whole = {_BASELINE: tune.baseline.losses, _VARIANT: variant}
    return {name: [_with_nan(losses)] for name, losses in whole.items() if losses}


def _with_nan(losses: Iterable[float | None]) -> list[float]:
    return [nan if loss is None else loss for loss in losses]


def proof_section(tune: Tune, folder: Path | None) -> Section:
    """Nothing if there was no ladder to prove."""
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
        blocks += [Paragraph(told) for told in filter(None, [settle_sentence(proof)])]
        numbers = tuple(
            (name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
            for name, value in proof.numbers.items()
            if value is not None
        )
        blocks += [Facts(numbers)] if numbers else []
    if chart := _chart(_proof_curves(tune, proof, folder)):
        blocks.append(chart)
    unproven = Proof(ProofState.NOT_PROVEN)
    blocks += Table.known(
        "proofs",
        "Rung by rung",
        tune.ladder,
        (Column("rung"), lambda rung: rung.label),
        (Column("kind"), lambda rung: rung.kind),
        (Column("losses"), lambda rung: (rung.proof or unproven).state),
        (Column("details"), lambda rung: proof_text(rung.proof)),
        (Column.numeric("steps"), lambda rung: (rung.proof or unproven).steps),
        (Column.numeric("seeds"), lambda rung: (rung.proof or unproven).seeds),
    )
    return Section("proof", "Proof", tuple(blocks))


def _chart(curves: Curves) -> Chart | None:
    """Each line's mean over seeds, with a band from the lowest to the highest seed."""
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
    note = f"{means} {downsample_note(most, 'steps')}".strip()
    title = "Losses with and without the fixes"
    return Chart.lines("proof-losses", title, *series, x="step", y="loss", note=note)
