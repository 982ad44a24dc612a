"""The sentences of a tune, made from its typed reasons."""

from collections.abc import Iterable

from stepscope.record.fix import TrainingChange
from stepscope.record.kinds import EndPart
from stepscope.record.proof import Because, Proof, ProofReason, ProofState
from stepscope.record.trial import NoteKind, RejectReason, StopReason, TrialStatus
from stepscope.record.units import format_duration, format_interval, format_speedup, plural
from stepscope.report.story.blocks import Tone
from stepscope.stats.verdict import Verdict
from stepscope.tune.document import (
    Confirmed,
    ConfirmFailure,
    NoteSummary,
    PatchStatus,
    RejectedFix,
    Speedup,
    Tune,
    TunedPatch,
)

_STATES = {
    ProofState.IDENTICAL: "are identical",
    ProofState.MATCHES: "match",
    ProofState.UNCLEAR: "are unclear",
    ProofState.DIFFERS: "differ",
}
_REASONS = {
    ProofReason.NO_SEED: "no seed was run both with and without the fixes",
    ProofReason.NO_LOSSES: "no losses were recorded",
    ProofReason.FEW_LOSSES: "only {count} of {of} steps have a loss",
    ProofReason.TOO_FEW_STEPS: "only {count} steps",
    ProofReason.NO_OUTPUTS: "no outputs were kept",
    ProofReason.BASELINE_FAILED: "the baseline failed: {detail}",
    ProofReason.VARIANT_FAILED: "the program failed: {detail}",
    ProofReason.NOT_APPLICABLE: "not applied: {detail}",
    ProofReason.OTHER_RATE: "the learning rate differs at step {step}",
    ProofReason.OTHER_LOSS: "the loss differs at step {step}",
    ProofReason.OTHER_LENGTH: "{count} steps, {of} in the baseline",
    ProofReason.NAN: "the loss is not a number at step {step}",
    ProofReason.FIRST_LOSS: "the first loss is off by {value:.1%}",
    ProofReason.DIVERGED: "losses diverge by step {step}: {value:,.0f}× the rounding control",
    ProofReason.NORM: "the gradient norm is off by {value:.1%} at step {step}",
    ProofReason.NORM_SHIFT: "gradient norms are shifted by {value:+.0%}",
    ProofReason.PACE: "the loss falls at {value:.0%} of the baseline's rate",
    ProofReason.TAIL: "final losses are {value:+.3g} apart",
    ProofReason.ONE_SEED: "one seed only",
    ProofReason.NO_TREND: "no loss trend to compare",
    ProofReason.UNCERTAIN_TREND: "loss trend uncertain (±{value:.0%})",
    ProofReason.WIDE_TAIL: "final losses vary too much between seeds",
    ProofReason.DRIFTS: "losses drift by step {step}: {value:.1f}× the rounding control",
    ProofReason.NO_BUDGET: "no budget left to compare them",
    ProofReason.OTHER_DRAWS: "steps differ as with other random draws, their means do not",
    ProofReason.OTHER_ENDING: "{ending}",
    ProofReason.OUTPUT_SHAPE: "outputs have another shape",
    ProofReason.OUTPUT_ERROR: "outputs are off by {value:.2g}",
    ProofReason.TOP1: "top-1 agrees for only {value:.1%}",
}
_ENDINGS = {
    EndPart.WEIGHTS: "weight {detail}",
    EndPart.BUFFERS: "buffer {detail}",
    EndPart.OPTIMIZER: "optimizer state {detail}",
    EndPart.FILES: "saved file {detail}",
}
_CHANGES = {
    TrainingChange.BATCH_SIZE: "another batch size: adapt the learning rate, its schedule and the"
    " number of steps",
    TrainingChange.FEWER_UPDATES: "fewer updates of larger batches: adapt the learning rate and"
    " its schedule",
    TrainingChange.SAMPLES_LEFT_OUT: "the last samples of each epoch are left out",
}


def _reason(because: Because) -> str:
    value = float("inf") if because.value is None else because.value
    count, of = (f"{number or 0:,}" for number in (because.count, because.of))
    words, detail = _REASONS[because.reason], because.detail or "no reason"
    ending = _ending(because) if because.part is not None else ""
    return words.format(
        step=because.step, value=value, count=count, of=of, detail=detail, ending=ending
    )


def _ending(because: Because) -> str:
    """`buffer bn.running_mean off by 12% and 3 more`."""
    more = f" and {because.count - 1:,} more" if because.count and because.count > 1 else ""
    if because.part is EndPart.OUTPUT and because.detail is None:
        return f"it does not print “{because.other}” as the baseline does{more}"
    if because.part is None or because.part is EndPart.OUTPUT:
        return f"it prints “{because.detail}”, the baseline “{because.other}”{more}"
    what = _ENDINGS[because.part].format(detail=because.detail)
    return f"{what}{'' if because.value is None else f' off by {because.value:.1%}'}{more}"


def changes_text(changes: Iterable[TrainingChange]) -> str:
    """What to adapt if a fix changes training."""
    return "; ".join(_CHANGES[change] for change in changes)


def proof_text(proof: Proof | None) -> str:
    """`match over 120 steps, 3 seeds`: the verb of a sentence about losses or outputs."""
    if proof is None:
        return "were not compared"
    because = proof.because
    if proof.state is ProofState.CHANGES:
        told = changes_text(proof.changes)
        return f"change with training: {told}" if told else "change with training"
    if proof.state is ProofState.NOT_PROVEN or not proof.steps:
        verb = "differ" if proof.state is ProofState.DIFFERS else "were not compared"
        return verb if because is None else f"{verb}: {_reason(because)}"
    words = f"{_STATES[proof.state]} over {plural(proof.steps, 'step')}"
    words += f", {plural(proof.seeds, 'seed')}" if proof.seeds > 1 else ""
    if because is not None:
        words += f": {_reason(because)}"
        words += "" if proof.baseline_repeats else "; the baseline was not run twice"
    elif proof.by_means:
        words += ", compared by their means"
    remarks = [
        "random draws fixed per batch" if proof.draws_per_batch else "",
        "the whole ladder" if proof.whole_ladder else "",
    ]
    told = ", ".join(filter(None, remarks))
    return f"{words} ({told})" if told else words


def settle_sentence(proof: Proof | None) -> str | None:
    """What would settle an unclear proof; None if it is not unclear."""
    if proof is None or proof.state not in (ProofState.UNCLEAR, ProofState.NOT_PROVEN):
        return None
    settle = proof.settle
    if settle is None:
        return "More trials would not settle it." if proof.state is ProofState.UNCLEAR else None
    if settle.seeds is None and proof.because and proof.because.reason is ProofReason.NO_TREND:
        steps = plural(proof.steps, "step")
        return f"Undecidable: over {steps} losses fall too little to compare their rates."
    if settle.seeds is None:
        few = f"{plural(proof.seeds, 'seed')} over {plural(proof.steps, 'step')}"
        return f"Undecidable: {few} vary so much that {settle.most_seeds} would not settle it."
    told = f"{plural(settle.seeds, 'seed')} of {plural(settle.steps, 'step')} should settle it"
    if settle.seconds is None:
        return f"{told}."
    took = f"{plural(settle.trials, 'more trial')}, about {format_duration(settle.seconds)}"
    return f"{told}: {took}{', more than the budget had left' if proof.budget_exhausted else ''}."


def proof_sentence(proof: Proof | None) -> str:
    """`Losses match over 120 steps, 3 seeds.`"""
    return f"{_compared(proof)} {proof_text(proof)}."


def _compared(proof: Proof | None) -> str:
    """`Losses, weights, buffers and output`."""
    if proof is None:
        return "Losses"
    if proof.because is not None and proof.because.part is not None:
        return "Results"
    if proof.of_outputs:
        return "Outputs"
    if proof.state not in (ProofState.IDENTICAL, ProofState.MATCHES) or not proof.ends:
        return "Losses"
    *first, last = ("losses", *proof.ends)
    return f"{', '.join(first)} and {last}".capitalize()


_BETTER = {"memory": "less memory", "energy": "less energy"}
_NOT_TRIED: dict[str, str] = {
    RejectReason.SKIPPED: "--skip",
    RejectReason.NO_LOADER: "no DataLoader",
    RejectReason.NO_OPTIMIZER: "no optimizer",
    RejectReason.NOTHING_FOUND: "no finding suggests it",
    RejectReason.SAVES_MEMORY_ONLY: "saves memory, not time",
    RejectReason.NO_OTHER_VALUE: "no other value to try",
}


def _times(found: Speedup) -> str:
    """`0.97× (0.95–0.99)`."""
    if found.speedup is None:
        return ""
    if found.low is None or found.high is None:
        return format_speedup(found.speedup)
    return f"{format_speedup(found.speedup)} ({format_interval(found.low, found.high)})"


def rejection_text(one: RejectedFix, objective: str = "throughput") -> str:
    """Why a fix was not tried or not kept."""
    because, ratio = one.because, format_speedup(one.speedup or 1.0)
    better, detail = _BETTER.get(objective, "faster"), because.detail
    slower = one.verdict is Verdict.SLOWER and objective == "throughput"
    match because.reason:
        case RejectReason.NOT_ALLOWED:
            changes = "training" if detail == "semantic" else "rounding or random draws"
            return f"changes {changes}: needs --allow {detail}"
        case RejectReason.NEEDS_DEVICE:
            return f"needs {'a CUDA device' if detail == 'cuda' else detail}"
        case RejectReason.REQUIRES:
            return f"does nothing without {detail}"
        case RejectReason.PREDICTED_LOSS if isinstance(detail, float):
            return f"no gain predicted ({format_speedup(detail)})"
        case RejectReason.NO_DATA:
            return f"{objective} was not measured"
        case RejectReason.SLOWER_AT_ONCE:
            return f"not {better} in one trial: {ratio}"
        case RejectReason.FAR_SLOWER if isinstance(detail, float):
            return f"far slower: {ratio}, ended after {detail:.0%} of a trial"
        case RejectReason.WITHIN_NOISE:
            return f"within run-to-run noise: {ratio}"
        case RejectReason.NOT_CLEAR:
            return f"not clearly {better}: {_times(one)}"
        case RejectReason.NOT_BETTER:
            return f"{'slower' if slower else f'not {better}'}: {_times(one)}"
        case RejectReason.TOO_SLOW if isinstance(detail, float):
            return f"less memory, but {detail:.0%} slower"
        case RejectReason.TRIAL_FAILED:
            status = because.status or TrialStatus.FAILED
            label = "failed" if status is TrialStatus.OK else status.label
            return f"{f'{because.fix} ' if because.fix else ''}{label}: {detail}"
        case RejectReason.OBSERVED_KIND:
            return f"needs --allow {because.kind}: {detail}"
        case RejectReason.UNSETTLED:
            seen = plural(because.trials, "trial") if because.trials else ""
            return f"{ratio} {f'after {seen}' if seen else 'in place'}, then the budget ended"
        case RejectReason.DIFFERS:
            return proof_sentence(one.proof).rstrip(".")
        case RejectReason.REPLACED:
            return f"replaced by {because.fix}: {ratio}"
        case RejectReason.DROPPED:
            return f"dropped: {ratio} without it"
        case reason:
            return because.text or _NOT_TRIED.get(reason, reason.replace("_", " "))


def in_place_sentence(tune: Tune) -> str | None:
    """What was tried inside one process; None: nothing."""
    names = [" + ".join(one.candidate) for one in tune.contests if one.in_place]
    if not names:
        return None
    return f"Tried in place, between steps of one process: {', '.join(dict.fromkeys(names))}."


def is_tried(one: RejectedFix) -> bool:
    """Whether a fix that was not kept was tried."""
    return one.state != "left_out"


def not_tried_groups(tune: Tune) -> list[tuple[str, list[str]]]:
    """Fixes that were never tried, by reason."""
    reasons: dict[str, list[str]] = {}
    for one in tune.rejected:
        if not is_tried(one):
            reasons.setdefault(rejection_text(one), []).append(one.fix)
    device = {rejection_text(one) for one in tune.rejected if one.because.reason == _NEEDS_DEVICE}
    for why in device & reasons.keys():
        if len(reasons[why]) > _MOST_NAMED:
            reasons[why] = [plural(len(reasons[why]), "fix", "fixes")]
    return list(reasons.items())


_NEEDS_DEVICE, _MOST_NAMED = RejectReason.NEEDS_DEVICE, 4


def nothing_kept(tune: Tune) -> str:
    """Why no fix was kept: none helped, none ran, none was tried, or not all were."""
    tried = [one for one in tune.rejected if is_tried(one)]
    if any(one.because.reason == RejectReason.UNSETTLED for one in tried):
        return "Undecided: a fix looked faster, but the budget ended before it was certain."
    if tried and all(one.because.reason == RejectReason.TRIAL_FAILED for one in tried):
        return f"{'So far no' if tune.untried else 'No'} fix works in this program."
    if tried:
        if tune.untried:
            return "None of the fixes tried so far made it faster."
        return "No fix made it faster. Keep the baseline."
    if tune.stopped is StopReason.INTERRUPTED:
        return "Interrupted before any fix was tried."
    if tune.untried:
        return "The budget is too small to try a fix."
    return "There is no fix to try. Keep the baseline."


def claim(tune: Tune) -> tuple[str, Tone]:
    """The tune's main sentence and its tone."""
    final, spent = tune.final, f"{plural(tune.trials, 'trial')}, {format_duration(tune.seconds)}."
    if final is None:
        return f"{nothing_kept(tune)} {spent}", Tone.PLAIN
    proof = proof_sentence(final.proof)
    if final.speedup is None:
        why = {
            ConfirmFailure.NO_BUDGET: ": the budget ended first",
            ConfirmFailure.INTERRUPTED: ": interrupted",
        }.get(final.failure or ConfirmFailure.NOT_FASTER, "")
        why = f": {final.detail}" if final.detail else why
        return f"Not confirmed on fresh trials{why}. {proof} {spent}", Tone.WARN
    interval = f"95% CI {format_interval(final.low or 0.0, final.high or 0.0)}"
    if final.verdict is Verdict.FASTER:
        return f"{format_speedup(final.speedup)} faster ({interval}). {proof} {spent}", Tone.GOOD
    words = {
        Verdict.SAME: "Same speed on fresh trials",
        Verdict.SLOWER: "Slower on fresh trials",
    }.get(final.verdict or Verdict.UNCLEAR, "Not confirmed on fresh trials")
    told = f"{words}: {format_speedup(final.speedup)} ({interval})."
    return f"{told} {proof} {spent}", Tone.WARN


def coverage_sentences(tune: Tune) -> list[str]:
    """What the proof covers, when compiling pays off, and what semantic fixes change."""
    lines: list[str] = []
    proof = tune.final.proof if tune.final is not None else None
    lines += filter(None, [settle_sentence(proof)])
    if proof is not None and proof.steps and not proof.of_outputs:
        parts = {*map(str, EndPart)}
        missed = [one for one in proof.not_covered if one not in parts]
        left_out = [one for one in proof.not_covered if one in parts]
        steps = f"The proof's {plural(proof.steps, 'step')}"
        told = [f"{steps} include: {', '.join(proof.covered)}."] if proof.covered else []
        who = "They" if told else steps
        told += [f"{who} do not include: {', '.join(missed)}."] if missed else []
        lines += [" ".join(told)] if told else []
        if left_out:
            lines.append(f"Not compared: {', '.join(left_out)}.")
    for rung in tune.ladder:
        if rung.pays_after_steps and rung.compile_s is not None:
            pays, took = plural(rung.pays_after_steps, "step"), format_duration(rung.compile_s)
            lines.append(f"{rung.label} compiles for {took}; that pays off after {pays}.")
        if rung.changes:
            lines.append(f"{rung.fix} changes training: {changes_text(rung.changes)}.")
    return lines


_ALL_OF = 0.95  # of the budget


def stop_sentence(tune: Tune) -> str | None:
    """Why the search ended early, or None."""
    if tune.stopped is None:
        return None
    words, which = "Interrupted; this is the best so far" if tune.ladder else "Interrupted", ""
    if tune.stopped is StopReason.BUDGET:
        words, budget_s = "Budget spent", tune.request.budget_s
        if budget_s and tune.seconds < _ALL_OF * budget_s:
            words = f"{format_duration(budget_s - tune.seconds)} of the budget left"
            which = ", too long for that"
    return f"{words}. Not tried{which}: {', '.join(tune.untried)}." if tune.untried else f"{words}."


def note_sentence(note: NoteSummary) -> str:
    """What makes trials less reliable."""
    what = {
        NoteKind.THROTTLED: f"clocks throttled by {note.detail}",
        NoteKind.SHARED_GPU: "other processes on the GPU",
        NoteKind.UNSTABLE: f"unsteady steps ({note.detail})",
    }[note.kind]
    return f"{what} in {note.trials} of {note.of} trials"


def is_worth_applying(patch: TunedPatch, final: Confirmed | None) -> bool:
    """Whether a patch measured faster, or there was no time to measure it. Two processes often
    leave it unclear: then half of the confirmed gain suffices."""
    if patch.speedup is None:
        return patch.status in (PatchStatus.NOT_MEASURED, PatchStatus.NO_BUDGET)
    faster = final is not None and final.verdict is Verdict.FASTER
    confirmed = final.speedup - 1 if faster and final and final.speedup else float("inf")
    unclear = patch.verdict is Verdict.UNCLEAR and patch.speedup - 1 > confirmed / 2
    return patch.verdict is Verdict.FASTER or unclear


def patch_status_text(patch: TunedPatch) -> str:
    """The status of a patch without a measured speedup."""
    detail = f": {patch.detail}" if patch.detail else ""
    return {
        PatchStatus.MEASURED: "measured",
        PatchStatus.NO_EDIT: "no edit could be located",
        PatchStatus.NOT_MEASURED: f"not measured{detail}",
        PatchStatus.NO_BUDGET: "not measured: too little budget left",
        PatchStatus.FAILED: f"the program fails with it{detail}",
        PatchStatus.REDACTED: "left out of this report, as it shows source",
    }[patch.status]


def patch_text(patch: TunedPatch, worth: bool, final: Confirmed | None = None) -> str:
    """`5 edits, measured: as fast`, compared with the confirmed speedup."""
    head = plural(len(patch.edits), "edit")
    if patch.speedup is None:
        return f"{head}, {patch_status_text(patch)}"
    if worth:
        less = final is not None and (patch.high or 0.0) < (final.low or 0.0)
        return f"{head}, measured: {f'only {_times(patch)}' if less else 'as fast'}"
    words = {Verdict.SAME: "same speed by itself", Verdict.SLOWER: "slower by itself"}
    told = words.get(patch.verdict or Verdict.UNCLEAR, "not shown to be faster by itself")
    return f"{head}, {told}: {_times(patch)}"
