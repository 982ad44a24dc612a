"""How many steps and seeds a proof should have."""

from typing import Final

from stepscope.tune.trial import Trial

FEWEST: Final = 30
USUAL: Final = 100
_MOST: Final = 400  # without an epoch's end in reach more steps show nothing else
_BEYOND: Final = 20  # steps of the second epoch
PER_SEED: Final = 3  # trials: baseline, control and variant


def proof_seeds(baseline: Trial, budget_s: float, seeds: int) -> int:
    """So many, or fewer where the budget does not hold the fewest steps of each; at least one."""
    step_s, start_s = _costs(baseline)
    return max(1, min(seeds, int(budget_s / PER_SEED / (start_s + FEWEST * step_s))))


def proof_steps(baseline: Trial, epoch: int | None, budget_s: float, seeds: int) -> int:
    """Past the first epoch's end where the budget allows it, else as many as it does; at least 30.

    `epoch` is its number of steps, None where it is not known; `budget_s` is for all the trials.
    """
    step_s, start_s = _costs(baseline)
    affordable = int((budget_s / seeds / PER_SEED - start_s) / step_s)
    wanted = max(USUAL, epoch + _BEYOND) if epoch else _MOST
    if wanted <= affordable:
        return wanted
    return max(FEWEST, min(affordable, _MOST))


def _costs(baseline: Trial) -> tuple[float, float]:
    """Seconds of a step, and of all that is no step."""
    steps = max(1, baseline.steps)
    step_s = baseline.mean_ms / 1e3 if baseline.step_ms else baseline.seconds / steps
    return max(step_s, 1e-6), max(0.0, baseline.seconds - steps * step_s)
