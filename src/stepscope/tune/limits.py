"""How long a trial may take before it counts as hanging."""

from stepscope.tune.ask import Ask
from stepscope.tune.trial import Trial

FIRST_S = 1800.0
"""For trials of a program of which nothing is known yet."""
_SLACK_S = 60.0
_TIMES, _LARGER_TIMES = 5.0, 40.0
_COMPILE_S = 900.0
_COMPILING = ("compile", "cuda_graph", "cudnn_benchmark")
_LARGER = ("batch", "accumulate")  # a step is then as long as several


def limit_s(ask: Ask, baseline: Trial | None) -> float:
    """A generous multiple of what the program took unfixed, and time to compile where it may."""
    if baseline is None:
        return FIRST_S
    names = {fix.split("=")[0] for fix in ask.fixes}
    times = _TIMES if names.isdisjoint(_LARGER) else _LARGER_TIMES
    longer = max(1.0, ask.steps / max(1, baseline.steps))
    compiling = 0.0 if names.isdisjoint(_COMPILING) else _COMPILE_S
    return _SLACK_S + times * longer * baseline.seconds + compiling
