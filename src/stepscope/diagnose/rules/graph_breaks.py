"""torch.compile falls back to Python in the middle of the model."""

from collections.abc import Iterable

from stepscope.analyze.whatif.changes import remove_host
from stepscope.analyze.whatif.select import host
from stepscope.analyze.whatif.tasks import Did
from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._kernels import gain
from stepscope.diagnose.rules._step import python_ms, recorded_part, sites
from stepscope.record.finding import Evidence, Finding

_LEAST = 0.02
_REMOVED = 0.8
_DYNAMO = r"^(Torch-Compiled Region|TorchDynamo Cache Lookup|Pregraph bytecode)"
_CHANGES = (
    remove_host(host(phase="forward", name=_DYNAMO), _REMOVED),
    remove_host(host(Did.GAP, Did.PYTHON, Did.ANNOTATION, phase="forward"), _REMOVED),
)


def _graph_breaks(case: Case) -> Iterable[Finding]:
    """Where Dynamo counted breaks, and its guards and Python take 2% of the step or more."""
    counted = (case.show or {}).get("compile") or {}
    breaks = int(counted.get("graph_breaks") or 0)
    if not breaks:
        return
    predicted = gain(case, _CHANGES, "forward runs as one graph, without Python between", 0.5)
    share = (
        (1 - 1 / predicted.speedup) / _REMOVED
        if predicted
        else recorded_part(case, python_ms(case))
    )
    if share < _LEAST:
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
