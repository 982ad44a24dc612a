"""Python in the forward pass keeps the step waiting, between its operators."""

from collections.abc import Iterable

from stepscope.analyze.whatif.changes import remove_host
from stepscope.analyze.whatif.select import host
from stepscope.analyze.whatif.tasks import Did
from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._kernels import gain
from stepscope.diagnose.rules._step import (
    functions,
    operator_calls,
    python_ms,
    recorded_part,
    sites,
)
from stepscope.record.finding import Evidence, Finding, Predicted

_LEAST = 0.1
_FORWARD = 0.3  # of the host's time must be in forward
_PER_CALL_US = 10.0  # of Python for each operator; an eager layer's own takes 2 to 6
_REMOVED = 0.9


def _python_heavy_forward(case: Case) -> Iterable[Finding]:
    """Where Python alone takes a tenth of the step, far more than calling operators needs."""
    share, predicted = _weighed(case)
    python, calls = share * case.step_ms, max(operator_calls(case), 1.0)
    if share < _LEAST or 1e3 * python < _PER_CALL_US * calls or not _in_forward(case):
        return
    yield Finding(
        id=PYTHON_HEAVY_FORWARD.id,
        title="Python in forward keeps the step waiting",
        why=(
            f"{share:.0%} of the step passes in Python code between {calls:,.0f} operators: the "
            "model computes nothing meanwhile."
        ),
        advice=(
            "Take what does not depend on the batch out of forward (tables, masks, configuration), "
            "and do the rest on tensors; `run --python` names the functions."
        ),
        share=share,
        evidence=(
            Evidence("Python between operators", python, "ms"),
            Evidence("operators per step", calls),
            Evidence("Python per operator", 1e3 * python / calls, "µs"),
        ),
        where=functions(case) or sites(case, "forward"),
        predicted=predicted,
        effort="some lines",
        kind="exact",
        confidence="medium",
    )


PYTHON_HEAVY_FORWARD = Rule(
    id="launch.python_heavy_forward",
    cause="Python in the forward pass keeps the step waiting, between its operators.",
    find=_python_heavy_forward,
)


def _weighed(case: Case) -> tuple[float, Predicted | None]:
    """The share of the bare step, by replay; without a model as recorded."""
    if case.model is None:
        return recorded_part(case, python_ms(case)), None
    change = remove_host(host(Did.GAP, Did.PYTHON, Did.ANNOTATION, phase="forward"), _REMOVED)
    predicted = gain(case, [change], "the Python between forward's operators goes away", 0.4)
    return (min(1.0, (1 - 1 / predicted.speedup) / _REMOVED) if predicted else 0.0), predicted


def _in_forward(case: Case) -> bool:
    """A trace alone does not tell; a run's own clocks do."""
    phases = (case.show or {}).get("phases_host_ms")
    if not phases:
        return case.show is None
    computing = sum(phases.get(p) or 0.0 for p in ("forward", "backward", "optimizer"))
    return (phases.get("forward") or 0.0) >= _FORWARD * computing > 0
