"""Launch rules: a host too slow to launch, an unfused optimizer, graph breaks, recompilations."""

from collections.abc import Iterable

from stepscope.analyze.replay.changes import remove_host
from stepscope.analyze.replay.known import fusible_optimizer, optimizer_ms
from stepscope.analyze.replay.tasks import select_host
from stepscope.diagnose.case import Case, in_ms, rule
from stepscope.diagnose.rules import facts
from stepscope.record.finding import (
    ChangeKind,
    Confidence,
    Effort,
    Evidence,
    Finding,
    FixRef,
    Predicted,
    Scope,
    TimelineHint,
)
from stepscope.record.kinds import IdleCause

_LEAST_IDLE = 0.1
_FEW_KERNELS = 20
_MOSTLY_OPTIMIZER = 0.5
_GRAPH = FixRef("cuda_graph")
_COMPILE = FixRef("compile", "reduce-overhead")
_LAUNCH_ADVICE = {
    ("cuda_graph", "compile"): "Launch more work at once: capture the step as a CUDA graph, or "
    "compile the model (torch.compile, mode reduce-overhead); larger batches help too.",
    ("cuda_graph",): "Launch more work at once: capture the step as a CUDA graph; larger batches "
    "help too.",
    ("compile",): "Launch more work at once: compile the model (torch.compile, mode "
    "reduce-overhead); larger batches help too.",
    (): "Launch fewer, larger operators: larger batches, fused layers in place of Python loops.",
}
"""By the fixes that apply."""


@rule(
    "launch.launch_bound",
    "The device idles because the host launches kernels too slowly.",
    timeline=TimelineHint(IdleCause.HOST),
)
def launch_bound(case: Case) -> Iterable[Finding]:
    """The device waits for launches 10% of the step, without CUDA graphs.

    Nothing where host and device take about as long, as fewer launches then gain little; nor where
    most of the step is an optimizer that could be fused, which has its own rule.
    """
    busy, count = facts.busy_ms(case), facts.kernels_per_step(case)
    unfed = facts.launch_idle_ms(case)
    idle = case.step_share(unfed)
    launch = case.trace.launch if case.trace else None
    if busy is None or launch is None or idle < _LEAST_IDLE or count < _FEW_KERNELS:
        return
    if 2 * launch.graph_kernels > launch.kernels or facts.host_and_device_close(case):
        return
    optimizer = case.step_share(case.phases.get("optimizer", 0.0))
    if fusible_optimizer(case) is not None and optimizer >= _MOSTLY_OPTIMIZER:
        return
    fix, predicted = _graph_or_compile(case)
    left = [one for one in (_GRAPH, _COMPILE) if case.may_apply(one)]
    short = launch.shorter_than_5us
    yield Finding(
        id=launch_bound.id,
        title="GPU waits for kernel launches",
        why=f"A step has {count:,.0f} kernels of {1e3 * busy / count:.0f} µs, and the host needs "
        f"{1e3 * case.step_ms / count:.0f} µs to launch each: the GPU idles {idle:.0%} of the "
        "step.",
        advice=_LAUNCH_ADVICE[tuple(one.name for one in left)],
        share=idle,
        evidence=(
            Evidence("waiting for launches", unfed, "ms"),
            Evidence("GPU busy", busy, "ms"),
            Evidence("kernels per step", count),
            Evidence("mean kernel", 1e3 * busy / count, "µs"),
            *((Evidence("kernels under 5 µs", 100 * short, "%"),) if short is not None else ()),
        ),
        where=facts.sites(case),
        predicted=predicted,
        fix=fix,
        refused=() if fix == _GRAPH else case.objections(_GRAPH, *(() if fix else (_COMPILE,))),
        effort=Effort.MANY_LINES if fix == _GRAPH else Effort.ONE_LINE,
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.HIGH if idle >= 0.3 else Confidence.MEDIUM,
    )


def _graph_or_compile(case: Case) -> tuple[FixRef | None, Predicted | None]:
    """A graph of the whole step, unless that does not apply, or compiling, which fuses too, gains
    far more. None where neither applies."""
    reason = "the step becomes a few launches"
    graph = facts.predict_gain(case, facts.fix_changes(case, "cuda_graph"), reason, 0.25)
    graphs, compiles = case.may_apply(_GRAPH), case.may_apply(_COMPILE)
    if not compiles or facts.is_compiled(case):
        return (_GRAPH, graph) if graphs else (None, None)
    fused = "kernels are fused and launched together"
    made = facts.predict_gain(case, facts.fix_changes(case, "compile", _COMPILE.value), fused, 0.35)
    better = not graphs or facts.gains_more(made, graph, by=0.25)
    return (_COMPILE, made) if better else (_GRAPH, graph)


_LEAST_OPTIMIZER = 0.03


@rule(
    "launch.unfused_optimizer",
    "The optimizer updates parameters in many passes instead of one.",
    timeline=TimelineHint(host_events=("Optimizer.step#",)),
)
def unfused_optimizer(case: Case) -> Iterable[Finding]:
    """An optimizer that has a fused version runs without it for 3% of the step.

    Nothing on a processor whose cores others use: fused kernels wait for all of torch's threads.
    """
    name = fusible_optimizer(case)
    if name is None:
        return
    device = optimizer_ms(case)
    spent = max(device, case.phases.get("optimizer", 0.0))
    share = case.step_share(spent)
    if share < _LEAST_OPTIMIZER or (facts.is_compiled(case) and case.device == "cpu"):
        return
    reason = f"the optimizer's {in_ms(spent)} ms become one pass over its state"
    changes = facts.fix_changes(case, "fused_optimizer")
    predicted = facts.predict_gain(case, changes, reason, 0.3, "optimizer", spent)
    if changes is None or facts.replay_gains_nothing(case, changes, predicted):
        return
    one_by_one = case.device == "cpu" or any(o.foreach is False for o in case.config.optimizers[:1])
    yield Finding(
        id=unfused_optimizer.id,
        title=f"{name} updates parameters in many passes",
        why=f"The optimizer takes {share:.0%} of the step"
        + (", one parameter at a time" if one_by_one else ", in a dozen foreach operations")
        + ": each reads and writes its whole state again.",
        advice=f"Pass fused=True to {name}.",
        share=share,
        evidence=(
            Evidence("optimizer", spent, "ms"),
            *((Evidence("its kernels", device, "ms"),) if case.device == "cuda" else ()),
        ),
        where=facts.sites(case, "optimizer"),
        predicted=predicted,
        fix=FixRef("fused_optimizer"),
        effort=Effort.ONE_ARGUMENT,
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.HIGH if predicted and case.device == "cuda" else Confidence.MEDIUM,
    )


_LEAST_BREAKS = 0.02
_REMOVED = 0.8
_DYNAMO = r"^(Torch-Compiled Region|TorchDynamo Cache Lookup|Pregraph bytecode)"
_ONE_GRAPH = (
    remove_host(select_host(phase="forward", name=_DYNAMO), _REMOVED),
    remove_host(select_host(*facts.PYTHON_STRETCHES, phase="forward"), _REMOVED),
)


@rule("launch.graph_breaks", "torch.compile falls back to Python in the middle of the model.")
def graph_breaks(case: Case) -> Iterable[Finding]:
    """Dynamo counted graph breaks; its guards and Python take 2% of the step."""
    counted = case.show.compile if case.show else None
    if counted is None or not counted.graph_breaks:
        return
    breaks = counted.graph_breaks
    predicted = facts.predict_gain(
        case, _ONE_GRAPH, "forward runs as one graph, without Python in between", 0.5
    )
    share = case.recorded_share(facts.python_ms(case))
    if predicted is not None:
        share = (1 - 1 / predicted.speedup) / _REMOVED
    if share < _LEAST_BREAKS:
        return
    reasons = counted.break_reasons
    first = reasons[0].splitlines()[0][:90].rstrip(". ") if reasons else ""
    yield Finding(
        id=graph_breaks.id,
        title=f"Graph breaks split the model into {breaks + 1} graphs",
        why=f"Dynamo breaks the graph at {breaks} place{'s' if breaks > 1 else ''}"
        + (f" (“{first}”)" if first else "")
        + ": Python runs there, and nothing fuses across.",
        advice="Move .item(), print and data-dependent branches out of forward, or use "
        "torch.where; fullgraph=True turns the first break into an error.",
        share=min(1.0, share),
        evidence=(
            Evidence("graph breaks", breaks),
            Evidence("graphs", counted.graphs),
            Evidence("Python between operators", facts.python_ms(case), "ms"),
            *(Evidence("reason", reason.splitlines()[0][:120]) for reason in reasons[:3] if reason),
        ),
        where=facts.sites(case, "forward"),
        predicted=predicted,
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.LOW if case.model is None else Confidence.MEDIUM,
    )


_LEAST_RECOMPILES = 2
_DYNAMO_LIMIT = 8  # after as many of one function, Dynamo runs it uncompiled
_LEAST_RECOMPILING = 0.02


@rule("launch.recompiles", "torch.compile recompiles the same code again and again.")
def recompiles(case: Case) -> Iterable[Finding]:
    """Code was recompiled at least twice, for 2% of the run or up to Dynamo's limit."""
    counted = case.show.compile if case.show else None
    if counted is None or counted.recompiles < _LEAST_RECOMPILES:
        return
    again = counted.recompiles
    whole = facts.time_spent(case, "compile")
    compiling = whole.seconds if whole is not None else 0.0
    wasted = compiling * again / (again + max(1, counted.graphs - again))
    share = wasted / whole.run_s if whole is not None else 0.0
    if share < _LEAST_RECOMPILING and again < _DYNAMO_LIMIT:
        return
    yield Finding(
        id=recompiles.id,
        title=f"torch.compile recompiled {again} times",
        why=f"Shapes, numbers or flags change from call to call: recompiling took about "
        f"{facts.in_s(wasted)} of the run"
        + ("; past its limit Dynamo runs the code eagerly." if again >= _DYNAMO_LIMIT else "."),
        advice="Keep shapes constant (drop_last, padding to a few lengths), or compile with "
        "dynamic=True; TORCH_LOGS=recompiles shows what changed.",
        share=max(share, 0.0),
        evidence=(
            Evidence("recompilations", again),
            Evidence("compiling", compiling, "s"),
            Evidence("recompiling", wasted, "s"),
        ),
        where=facts.sites(case, "forward"),
        fix=FixRef("compile", "default,dynamic"),
        effort=Effort.ONE_ARGUMENT,
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.MEDIUM,
        scope=Scope.RUN,
    )
