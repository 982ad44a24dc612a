"""Debugging aids left on: anomaly detection, deterministic algorithms."""

from collections.abc import Iterable

from stepscope.analyze.whatif.changes import drop_waits, remove_host, scale_kernels
from stepscope.analyze.whatif.select import host, kernels
from stepscope.analyze.whatif.tasks import Did
from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._kernels import category_ms, gain
from stepscope.diagnose.rules._step import (
    named_ms,
    operators,
    part,
    recorded_part,
    sites,
    steps,
    switches,
)
from stepscope.record.finding import Evidence, Finding

_CHECKS = r"^aten::(isnan|ne|any|_is_any_true|is_nonzero|item|_local_scalar_dense)$"
_TRACE_US = 80.0  # to keep a stack trace, for each gradient that is looked at: a prior
_TRACES = 0.2  # of forward, where these were not counted
_MOST = 0.9
_BETWEEN = 0.8  # of what passes between backward's operators: the looking itself, a prior
_FILLS = r"^aten::fill_$"
_SLOWER = 0.1  # of convolutions: what deterministic algorithms cost, a prior


def _debug_modes(case: Case) -> Iterable[Finding]:
    """Where one of the switches is on."""
    known = switches(case)
    if known.get("anomaly_detection"):
        yield _anomaly(case)
    if known.get("deterministic") or known.get("cudnn_deterministic"):
        found = _deterministic(case)
        if found is not None:
            yield found


DEBUG_MODES = Rule(
    id="compute.debug_modes",
    cause="Debugging aids left on: anomaly detection, deterministic algorithms.",
    find=_debug_modes,
)


def _anomaly(case: Case) -> Finding:
    checks = recorded_part(case, named_ms(case, _CHECKS))
    traces = _traces(case)
    share = min(1.0, checks + traces * part(case, case.phases.get("forward", 0.0)))
    changes = [
        drop_waits(phase="backward"),
        remove_host(host(operator=_CHECKS, phase="backward")),
        remove_host(host(Did.GAP, Did.PYTHON, phase="backward"), _BETWEEN),
        remove_host(host(phase="forward"), traces),
        remove_host(host(Did.OPERATOR, phase="other"), traces),  # the loss, where it is apart
    ]
    if case.device == "cuda":
        checked = kernels(operator=_CHECKS, phase="backward")
        changes.append(scale_kernels(checked, 0.0))
    return Finding(
        id=DEBUG_MODES.id,
        title="Anomaly detection is on",
        why=(
            "Autograd keeps a stack trace of every operator and looks for NaN after each step of "
            "backward, waiting for the device each time."
        ),
        advice="Turn torch.autograd.set_detect_anomaly off; turn it on to hunt a NaN.",
        share=share,
        evidence=(
            Evidence("torch.is_anomaly_enabled()", "True"),
            Evidence("looking for NaN", 100 * checks, "%"),
        ),
        where=sites(case, "backward"),
        predicted=gain(case, changes, "no stack traces are kept and nothing is checked", 0.4),
        effort="one line",
        kind="exact",
        confidence="high",
    )


def _traces(case: Case) -> float:
    """The share of forward that goes into keeping stack traces."""
    counts = [o["count"] for o in operators(case) if o["name"] in ("aten::any", "aten::isnan")]
    forward = case.phases.get("forward", 0.0)
    if not counts or forward <= 0:
        return _TRACES
    each = max(counts) / max(1, steps(case))
    return float(min(_MOST, each * _TRACE_US / 1e3 / forward))


def _deterministic(case: Case) -> Finding | None:
    fills = (
        recorded_part(case, named_ms(case, _FILLS)) if switches(case).get("deterministic") else 0.0
    )
    slower = _SLOWER * part(case, category_ms(case, "convolution"))
    share = min(1.0, fills + slower)
    if share <= 0:
        return None
    changes = [scale_kernels(kernels("convolution"), 1 - _SLOWER)]
    if fills:
        changes.append(remove_host(host(operator=_FILLS)))
        changes.append(scale_kernels(kernels(operator=_FILLS), 0.0))
    return Finding(
        id=DEBUG_MODES.id,
        title="Deterministic algorithms are asked for",
        why=(
            "Convolutions and sums may not take their fastest algorithms"
            + (", and new tensors are filled before they are used." if fills else ".")
        ),
        advice=(
            "Leave torch.use_deterministic_algorithms and cudnn.deterministic off unless runs must "
            "repeat bit by bit; torch.utils.deterministic.fill_uninitialized_memory = False keeps "
            "that without the filling."
        ),
        share=share,
        evidence=(
            Evidence("filling", 100 * fills, "%"),
            Evidence("convolutions", category_ms(case, "convolution"), "ms"),
        ),
        where=sites(case, "forward"),
        predicted=gain(case, changes, "faster algorithms, and memory is not filled first", 0.8),
        effort="one line",
        kind="numeric",
        confidence="low",
    )
