"""Seed by seed, as few trials as a proof needs. It stops early only to reject."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from stepscope.tune.proof import DIFFERS, IDENTICAL, MATCHES, UNCLEAR, Proof, over
from stepscope.tune.proof_asked import Case
from stepscope.tune.proof_draws import draws_otherwise, may_draw_otherwise, same_batches
from stepscope.tune.proof_exact import judge_exact
from stepscope.tune.proof_numeric import judge_numeric
from stepscope.tune.proof_outputs import Outputs, judge_outputs
from stepscope.tune.trial import Trial

_MORE: Final = 2  # seeds where there is no control, and only seeds tell the spread
_HELD: Final = "(each batch's random draws held)"


def prove_exact(case: Case, first: Trial, other: Trial, seeds: int, own: str) -> Proof:
    """Two trials where bits agree; a third where not, which shows whether the baseline repeats."""
    ours, theirs = [first], [other]
    proof = judge_exact(ours, theirs, own)
    if proof.state != UNCLEAR:
        return proof
    for seed in range(seeds):
        if seed:
            ours.append(case.base(seed))
            theirs.append(case.variant(seed))
        ours.append(case.base(seed))
        proof = judge_exact(ours, theirs, own, more=seed + 1 < seeds)
        if proof.state == DIFFERS:
            break
    return proof


def prove_numeric(case: Case, first: Trial, other: Trial, seeds: int, dtype: str) -> Proof:
    """The baseline, the variant and the control of each seed; two trials where bits agree.

    What makes other random draws for its batches is run with draws held to them, so that steps can
    be paired; where its batches differ even so, means must do.
    """
    proof = judge_exact([first], [other])
    if proof.state != IDENTICAL and draws_otherwise(other):
        if seeds > 1 and not case.ask.held:
            case = case.held()
            return prove_numeric(case, case.base(), case.variant(), seeds, dtype)
        if seeds == 1 or not same_batches(first, other):
            return _by_means(case, [first], [other], seeds, dtype)
    if proof.state != IDENTICAL:
        proof = _paired(case, first, other, seeds, dtype)
    return replace(proof, words=f"{proof.words} {_HELD}") if case.ask.held else proof


def _paired(case: Case, first: Trial, other: Trial, seeds: int, dtype: str) -> Proof:
    ours, theirs, checks = [first], [other], list[Trial]()
    for seed in range(seeds):
        if seed:
            ours.append(case.base(seed))
            theirs.append(case.variant(seed))
        checks.append(case.base(seed, perturb=dtype))
        proof = judge_numeric(ours, checks, theirs, dtype, more=seed + 1 < seeds)
        if proof.state == DIFFERS:
            break
    if proof.state != DIFFERS or not may_draw_otherwise(case.fixes):
        return proof
    means = _by_means(case, ours, theirs, seeds, dtype)
    # Nobody said that the program draws random numbers: agreement is not enough then.
    why = "steps part as with other random draws, their means do not"
    words = f"unclear {over(means.steps, means.seeds)}: {why}"
    return replace(means, state=UNCLEAR, words=words) if means.state == MATCHES else means


def _by_means(case: Case, ours: list[Trial], theirs: list[Trial], seeds: int, dtype: str) -> Proof:
    """Of what draws other random numbers: no step can be paired, so more seeds and no control.

    One seed only is asked for where the proof of a whole ladder is still to come.
    """
    proof = judge_numeric(ours, (), theirs, dtype, draws=True)
    for seed in range(len(ours), seeds + _MORE if seeds > 1 else 1):
        ours.append(case.base(seed))
        theirs.append(case.variant(seed))
        proof = judge_numeric(ours, (), theirs, dtype, draws=True)
        if seed + 1 >= seeds and proof.state == DIFFERS:
            break
    return proof


def prove_outputs(
    case: Case,
    first: Trial,
    other: Trial,
    outputs: Callable[[Trial], Outputs],
    dtype: str,
    *,
    exact: bool,
) -> Proof:
    """Two trials; a control where outputs are further apart than the dtype alone explains."""
    ours, theirs, used = outputs(first), outputs(other), [first.number, other.number]
    proof = judge_outputs(ours, theirs, dtype, exact=exact)
    if not exact and proof.state in (UNCLEAR, DIFFERS):
        check = case.base(perturb=dtype)
        used.append(check.number)
        if check.proof.get("outputs"):
            proof = judge_outputs(ours, theirs, dtype, control=outputs(check))
    return replace(proof, trials=tuple(used))
