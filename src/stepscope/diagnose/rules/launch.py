"""Launch rules: a host too slow to launch, an unfused optimizer, graph breaks, recompilations."""

from collections.abc import Iterable

from stepscope.analyze.replay.changes import remove_host
from stepscope.analyze.replay.known import fusible_optimizer, optimizer_ms
from stepscope.analyze.replay.tasks import StretchKind, select_host
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules.facts import (
    busy_ms,
    gains_more,
    host_and_device_close,
    in_s,
    is_compiled,
    kernels_per_step,
    launch_idle_ms,
    predict_gain,
    python_ms,
    recorded_share,
    replay_gains_nothing,
    seconds_by_category,
    sites,
    step_share,
    time_spent,
    uses_cuda_graphs,
)
from stepscope.fixes.registry import fix_named
from stepscope.record.finding import Evidence, Finding, FixRef, Predicted

_LEAST_IDLE = 0.1
_FEW_KERNELS = 20
_MOSTLY_OPTIMIZER = 0.5
_GRAPH = FixRef("cuda_graph")
_COMPILE = FixRef("compile", "reduce-overhead")


def _launch_bound(case: Case) -> Iterable[Finding]:
    """Where the device waits for launches in a tenth of the step, graphs not being used already.

    Nothing where host and device take about as long: a launch less then gains little; nor where
    most of the step is an optimizer that could be fused: its launches are its own rule's.
    """
    busy, unfed, count = busy_ms(case), launch_idle_ms(case), kernels_per_step(case)
    if (
        busy is None
        or step_share(case, unfed) < _LEAST_IDLE
        or count < _FEW_KERNELS
        or uses_cuda_graphs(case)
    ):
        return
    if host_and_device_close(case) or _is_mostly_optimizer(case):
        return
    fix, predicted = _graph_or_compile(case)
    launch = (case.trace or {}).get("launch") or {}
    short = launch.get("shorter_than_5us")
    yield Finding(
        id=LAUNCH_BOUND.id,
        title="The GPU waits for the host to launch kernels",
        why=(
            f"A step is {count:,.0f} kernels of {1e3 * busy / count:.0f} µs each, and the host "
            f"takes {1e3 * case.step_ms / count:.0f} µs to get each one going: the GPU idles "
            f"{step_share(case, unfed):.0%} of the step."
        ),
        advice=(
            "Launch more work at a time: replay the step as a CUDA graph, or compile the model "
            "(torch.compile, mode reduce-overhead); larger batches help too."
        ),
        share=step_share(case, unfed),
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
        confidence="high" if step_share(case, unfed) >= 0.3 else "medium",
    )


LAUNCH_BOUND = Rule(
    id="launch.launch_bound",
    cause="The device idles because the host launches its kernels too slowly.",
    find=_launch_bound,
)


def _is_mostly_optimizer(case: Case) -> bool:
    spent = case.phases.get("optimizer", 0.0)
    return fusible_optimizer(case) is not None and step_share(case, spent) >= _MOSTLY_OPTIMIZER


def _graph_or_compile(case: Case) -> tuple[FixRef, Predicted | None]:
    """A graph of the whole step, unless compiling, which fuses too, gains far more."""
    words = "the host's part of the step becomes a few launches"
    graph = predict_gain(case, fix_named("cuda_graph").predict(None, case), words, 0.25)
    if is_compiled(case):
        return _GRAPH, graph
    fused = "kernels are fused and launched together"
    made = predict_gain(case, fix_named("compile").predict(_COMPILE.value, case), fused, 0.35)
    return (_COMPILE, made) if gains_more(made, graph, by=0.25) else (_GRAPH, graph)


_LEAST_OPTIMIZER = 0.03


def _unfused_optimizer(case: Case) -> Iterable[Finding]:
    """Where an optimizer with a fused version steps without it for 3% of the step or more."""
    name = fusible_optimizer(case)
    if name is None:
        return
    device = optimizer_ms(case)
    host = case.phases.get("optimizer", 0.0)
    spent = max(device, host)
    if step_share(case, spent) < _LEAST_OPTIMIZER or (is_compiled(case) and case.device == "cpu"):
        return
    words = f"the optimizer's {in_ms(spent)} ms become one pass over its state"
    changes = fix_named("fused_optimizer").predict(None, case)
    predicted = predict_gain(case, changes, words, 0.3)
    if replay_gains_nothing(case, changes, predicted):
        return
    one_by_one = case.device == "cpu" or _setting(case, "foreach") is False
    yield Finding(
        id=UNFUSED_OPTIMIZER.id,
        title=f"{name} updates parameters in many passes",
        why=(
            f"The optimizer takes {step_share(case, spent):.0%} of the step"
            + (", one parameter after the other" if one_by_one else ", in a dozen list operations")
            + ": each reads and writes its whole state again."
        ),
        advice=f"Pass fused=True to {name}.",
        share=step_share(case, spent),
        evidence=(
            Evidence("optimizer", spent, "ms"),
            *((Evidence("its kernels", device, "ms"),) if case.device == "cuda" else ()),
        ),
        where=sites(case, "optimizer"),
        predicted=predicted,
        fix=FixRef("fused_optimizer"),
        effort="one argument",
        kind="numeric",
        confidence="high" if predicted is not None and case.device == "cuda" else "medium",
    )


UNFUSED_OPTIMIZER = Rule(
    id="launch.unfused_optimizer",
    cause="The optimizer updates parameters in many passes where one would do.",
    find=_unfused_optimizer,
)


def _setting(case: Case, flag: str) -> object:
    optimizers = ((case.show or {}).get("config") or {}).get("optimizers") or [{}]
    return optimizers[0].get(flag)


_LEAST_BREAKS = 0.02
_REMOVED = 0.8
_DYNAMO = r"^(Torch-Compiled Region|TorchDynamo Cache Lookup|Pregraph bytecode)"
_ONE_GRAPH = (
    remove_host(select_host(phase="forward", name=_DYNAMO), _REMOVED),
    remove_host(
        select_host(StretchKind.GAP, StretchKind.PYTHON, StretchKind.ANNOTATION, phase="forward"),
        _REMOVED,
    ),
)


def _graph_breaks(case: Case) -> Iterable[Finding]:
    """Where Dynamo counted breaks, and its guards and Python take 2% of the step or more."""
    counted = (case.show or {}).get("compile") or {}
    breaks = int(counted.get("graph_breaks") or 0)
    if not breaks:
        return
    predicted = predict_gain(
        case, _ONE_GRAPH, "forward runs as one graph, without Python between", 0.5
    )
    share = (
        (1 - 1 / predicted.speedup) / _REMOVED
        if predicted
        else recorded_share(case, python_ms(case))
    )
    if share < _LEAST_BREAKS:
        return
    reasons = [str(reason) for reason in counted.get("break_reasons") or []]
    first = reasons[0].splitlines()[0][:90].rstrip(". ") if reasons else ""
    yield Finding(
        id=GRAPH_BREAKS.id,
        title=f"The compiled model breaks into {breaks + 1} pieces",
        why=(
            f"Dynamo could not follow {breaks} place{'s' if breaks > 1 else ''}"
            + (f" (“{first}”)" if first else "")
            + ": there Python runs, and nothing is fused across."
        ),
        advice=(
            "Take .item(), print, and data-dependent branches out of forward, or replace them by "
            "torch.where and the like; fullgraph=True turns the first break into an error."
        ),
        share=min(1.0, share),
        evidence=(
            Evidence("graph breaks", breaks),
            Evidence("graphs", int(counted.get("graphs") or 0)),
            Evidence("Python between operators", python_ms(case), "ms"),
            *(Evidence("reason", reason.splitlines()[0][:120]) for reason in reasons[:3] if reason),
        ),
        where=sites(case, "forward"),
        predicted=predicted,
        effort="some lines",
        kind="numeric",
        confidence="low" if case.model is None else "medium",
    )


GRAPH_BREAKS = Rule(
    id="launch.graph_breaks",
    cause="torch.compile falls back to Python in the middle of the model.",
    find=_graph_breaks,
)


_LEAST_RECOMPILES = 2
_DYNAMO_LIMIT = 8  # after as many of one function, Dynamo runs it uncompiled
_LEAST_RECOMPILING = 0.02


def _recompiles(case: Case) -> Iterable[Finding]:
    """Where code was compiled again twice or more, for 2% of the run or up to Dynamo's limit."""
    counted = (case.show or {}).get("compile") or {}
    again = int(counted.get("recompiles") or 0)
    if again < _LEAST_RECOMPILES:
        return
    compiling = seconds_by_category(case).get("compile", 0.0)
    every = again + max(1, int(counted.get("graphs") or 0) - again)
    wasted = compiling * again / every
    whole = time_spent(case, "compile")
    share = wasted / whole.run_s if whole is not None else 0.0
    if share < _LEAST_RECOMPILING and again < _DYNAMO_LIMIT:
        return
    yield Finding(
        id=RECOMPILES.id,
        title=f"torch.compile compiled again {again} times",
        why=(
            f"Shapes, numbers or flags that change from call to call made it compile {again} times "
            f"more than needed: about {in_s(wasted)} of the run"
            + ("; past its limit it gives up and runs eagerly." if again >= _DYNAMO_LIMIT else ".")
        ),
        advice=(
            "Keep shapes the same (drop_last, padding to a few lengths), or compile with "
            "dynamic=True; TORCH_LOGS=recompiles says what changed."
        ),
        share=max(share, 0.0),
        evidence=(
            Evidence("recompilations", again),
            Evidence("compiling", compiling, "s"),
            Evidence("of that, again", wasted, "s"),
        ),
        where=sites(case, "forward"),
        fix=FixRef("compile", "default,dynamic"),
        effort="one argument",
        kind="numeric",
        confidence="medium",
        scope="run",
    )


RECOMPILES = Rule(
    id="launch.recompiles",
    cause="torch.compile compiles the same code again and again.",
    find=_recompiles,
)
