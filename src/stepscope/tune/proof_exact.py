"""Whether a variant gives every loss of the baseline bit for bit."""

from collections.abc import Sequence
from math import isnan

from stepscope.tune.proof import DIFFERS, IDENTICAL, UNCLEAR, Proof, not_proven, over
from stepscope.tune.proof_covers import covers
from stepscope.tune.proof_first import other_rate
from stepscope.tune.proof_numeric import judge_numeric
from stepscope.tune.trial import Trial


def judge_exact(
    base: Sequence[Trial],
    variant: Sequence[Trial],
    dtype: str = "float32",
    *,
    more: bool = False,
) -> Proof:
    """Every trial of the variant against those of the baseline with its seed.

    A baseline that does not repeat itself, as on a GPU that adds in any order, cannot be asked
    of bits: then the variant is judged as a change of rounding (to `dtype`, the program's own),
    the baseline's second trials being the control. With one trial of a seed that stays open.
    `more` seeds are to come.
    """
    ours, theirs = _by_seed(base), _by_seed(variant)
    seeds = [seed for seed in ours if seed in theirs]
    if not seeds:
        return not_proven("no seed was run both with it and without")
    if not any(loss is not None for trial in base for loss in trial.losses):
        return not_proven("the program's losses were not seen")
    used = [trial for seed in seeds for trial in (*ours[seed], *theirs[seed])]
    pairs = [(ours[seed][0], trial) for seed in seeds for trial in theirs[seed]]
    steps = min(min(len(a.losses), len(b.losses)) for a, b in pairs)
    found = next((why for a, b in pairs if (why := unlike(a, b))), None)
    if found is None:
        words = f"identical {over(steps, len(seeds) if len(seeds) > 1 else None)}"
        return _proof(IDENTICAL, words, steps, seeds, used)
    repeats = [(ours[seed][0], again) for seed in seeds for again in ours[seed][1:]]
    if not repeats:
        words = f"unclear {over(steps)}: {found}, and whether the baseline repeats is not known"
        return _proof(UNCLEAR, words, steps, seeds, used)
    if all(unlike(a, b) is None for a, b in repeats):
        return _proof(DIFFERS, f"differs {over(steps)}: {found}", steps, seeds, used)
    first = [a for a, _ in repeats]
    return judge_numeric(first, [b for _, b in repeats], variant, dtype, more=more)


def unlike(base: Trial, variant: Trial) -> str | None:
    """How two trials with one seed differ first, however little; None: in nothing."""
    if step := other_rate(base, variant):
        return f"another learning rate at step {step}"
    for step, (ours, theirs) in enumerate(zip(base.losses, variant.losses, strict=False), start=1):
        if not _same(ours, theirs):
            return f"another loss at step {step}"
    if base.ask.steps == variant.ask.steps and len(base.losses) != len(variant.losses):
        return f"{len(variant.losses):,} steps where the baseline makes {len(base.losses):,}"
    return None


def _same(ours: float | None, theirs: float | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return ours == theirs or (isnan(ours) and isnan(theirs))


def _by_seed(trials: Sequence[Trial]) -> dict[int, list[Trial]]:
    found: dict[int, list[Trial]] = {}
    for trial in trials:
        if trial.ok:
            found.setdefault(trial.ask.seed, []).append(trial)
    return found


def _proof(
    state: str, words: str, steps: int, seeds: Sequence[int], used: Sequence[Trial]
) -> Proof:
    covered, missing = covers(used)
    numbers = tuple(sorted({trial.number for trial in used}))
    return Proof(state, words, steps, len(seeds), {}, covered, missing, numbers)
