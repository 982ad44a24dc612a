"""Whether the program with a set of fixes does what it does without: trials, and the proof."""

from collections.abc import Callable, Sequence
from typing import Final

from stepscope.fixes.base import Kind
from stepscope.tune.ask import Ask
from stepscope.tune.proof import Proof, changes_training, not_proven
from stepscope.tune.proof_asked import Case, Ended, Trials
from stepscope.tune.proof_draws import draws_otherwise, least_exact
from stepscope.tune.proof_outputs import Outputs
from stepscope.tune.proof_rounding import rounding_of
from stepscope.tune.proof_seeds import prove_exact, prove_numeric, prove_outputs
from stepscope.tune.trial import Run, Trial

SEEDS: Final = 3


def prove(
    run: Run,
    fixes: Sequence[str],
    kind: str,
    *,
    steps: int,
    base_fixes: Sequence[str] = (),
    seeds: int = SEEDS,
    known: Sequence[Trial] = (),
    own: str = "float32",
    outputs: Callable[[Trial], Outputs] | None = None,
) -> Proof:
    """Whether the program with `fixes` does what it does with `base_fixes` alone.

    `kind` is the least exact of the fixes; what the trials say of themselves counts if it is less
    so. `known` are trials made before, used in place of equal asks. `own` is the coarsest
    arithmetic of the program itself. `outputs` reads what an inference trial kept.
    """
    if kind == Kind.SEMANTIC:
        return changes_training(fixes)
    ask = Ask(tuple(base_fixes), steps=steps, proof=True)
    case = Case(Trials(run, known), ask, tuple(fixes))
    if seeds > 1 and any(
        map(draws_otherwise, (one for one in known if one.ask.fixes == case.fixes))
    ):
        case = case.held()
    dtype = rounding_of((*fixes, *base_fixes), own)
    try:
        first, other = case.base(), case.variant()
        kind = max(kind, least_exact(other), key=[*Kind].index)
        if kind == Kind.SEMANTIC:
            return changes_training(fixes)
        exact = kind == Kind.EXACT
        if first.what == "inference":
            if outputs is None or not all(one.proof.get("outputs") for one in (first, other)):
                return not_proven("outputs were not kept")
            return prove_outputs(case, first, other, outputs, dtype, exact=exact)
        if exact:
            return prove_exact(case, first, other, seeds, own)
        return prove_numeric(case, first, other, seeds, dtype)
    except Ended as ended:
        return ended.proof
