"""The device idles because the host launches its kernels too slowly."""

from collections.abc import Iterable

from stepscope.analyze.whatif.gains import change_for
from stepscope.analyze.whatif.gains_launch import fusible
from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._kernels import gain, more
from stepscope.diagnose.rules._step import (
    busy_ms,
    captured,
    compiled,
    kernels_per_step,
    neck_and_neck,
    part,
    sites,
    unfed_ms,
)
from stepscope.record.finding import Evidence, Finding, FixRef, Predicted

_LEAST = 0.1
_FEW = 20
_MOSTLY = 0.5
_GRAPH = FixRef("cuda_graph")
_COMPILE = FixRef("compile", "reduce-overhead")


def _launch_bound(case: Case) -> Iterable[Finding]:
    """Where the device waits for launches in a tenth of the step, graphs not being used already.

    Nothing where host and device take about as long: a launch less then gains little; nor where
    most of the step is an optimizer that could be fused: its launches are its own rule's.
    """
    busy, unfed, count = busy_ms(case), unfed_ms(case), kernels_per_step(case)
    if busy is None or part(case, unfed) < _LEAST or count < _FEW or captured(case):
        return
    if neck_and_neck(case) or _optimizers_own(case):
        return
    fix, predicted = _best(case)
    launch = (case.trace or {}).get("launch") or {}
    short = launch.get("shorter_than_5us")
    yield Finding(
        id=LAUNCH_BOUND.id,
        title="The GPU waits for the host to launch kernels",
        why=(
            f"A step is {count:,.0f} kernels of {1e3 * busy / count:.0f} µs each, and the host "
            f"takes {1e3 * case.step_ms / count:.0f} µs to get each one going: the GPU idles "
            f"{part(case, unfed):.0%} of the step."
        ),
        advice=(
            "Launch more work at a time: replay the step as a CUDA graph, or compile the model "
            "(torch.compile, mode reduce-overhead); larger batches help too."
        ),
        share=part(case, unfed),
        evidence=(
            Evidence("idle for want of launches", unfed, "ms"),
            Evidence("GPU busy", busy, "ms"),
            Evidence("kernels per step", count),
            Evidence("mean kernel", 1e3 * busy / count, "µs"),
            *((Evidence("kernels under 5 µs", 100 * short, "%"),) if short is not None else ()),
        ),
        where=sites(case),
        predicted=predicted,
        fix=fix,
        effort="many lines" if fix == _GRAPH else "one line",
        kind="numeric",
        confidence="high" if part(case, unfed) >= 0.3 else "medium",
    )


LAUNCH_BOUND = Rule(
    id="launch.launch_bound",
    cause="The device idles because the host launches its kernels too slowly.",
    find=_launch_bound,
)


def _optimizers_own(case: Case) -> bool:
    spent = case.phases.get("optimizer", 0.0)
    return fusible(case) is not None and part(case, spent) >= _MOSTLY


def _best(case: Case) -> tuple[FixRef, Predicted | None]:
    """A graph of the whole step, unless compiling, which fuses too, gains far more."""
    words = "the host's part of the step becomes a few launches"
    graph = gain(case, change_for("cuda_graph", None, case), words, 0.25)
    if compiled(case):
        return _GRAPH, graph
    fused = "kernels are fused and launched together"
    made = gain(case, change_for("compile", _COMPILE.value, case), fused, 0.35)
    return (_COMPILE, made) if more(made, graph, by=0.25) else (_GRAPH, graph)
