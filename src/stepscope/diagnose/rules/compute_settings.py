"""Compute rules about settings: debugging aids left on, too few threads, small batches."""

from collections.abc import Iterable

from stepscope.analyze.replay.changes import drop_waits, remove_host, scale_kernels
from stepscope.analyze.replay.known import LATENCY_STAYS, SHORT_NS, kernel_rows
from stepscope.analyze.replay.tasks import StretchKind, select_host, select_kernels
from stepscope.diagnose.case import Case, rule
from stepscope.diagnose.rules import facts
from stepscope.record.finding import (
    ChangeKind,
    Confidence,
    Effort,
    Evidence,
    Finding,
    FixRef,
    Place,
)

_CHECKS = r"^aten::(isnan|ne|any|_is_any_true|is_nonzero|item|_local_scalar_dense)$"
_TRACE_US = 80.0  # to record a stack trace, per gradient checked: a prior
_TRACES = 0.2  # of forward: recording stack traces, if they were not counted
_MOST_TRACES = 0.9
_BETWEEN = 0.8  # of the time between backward's operators: the check itself, a prior
_FILLS = r"^aten::fill_$"
_DETERMINISTIC_COST = 0.1  # of convolutions: what deterministic algorithms cost, a prior


@rule(
    "compute.debug_modes",
    "Debug modes left on: anomaly detection, deterministic algorithms, blocking launches.",
)
def debug_modes(case: Case) -> Iterable[Finding]:
    """Anomaly detection, deterministic algorithms or CUDA_LAUNCH_BLOCKING are on."""
    if case.device == "cuda" and _is_set(case, "CUDA_LAUNCH_BLOCKING"):
        yield _blocking(case)
    if case.switches.anomaly_detection:
        yield _anomaly(case)
    if case.switches.deterministic or case.switches.cudnn_deterministic:
        yield from _deterministic(case)


def _is_set(case: Case, variable: str) -> bool:
    return case.config.environment.get(variable, "0") not in ("", "0")


def _blocking(case: Case) -> Finding:
    busy = facts.busy_share(case)
    idle = 1.0 if busy is None else max(0.0, 1 - busy)
    return Finding(
        id=debug_modes.id,
        title="CUDA_LAUNCH_BLOCKING is set",
        why="The host waits for every kernel before it launches the next one, so neither the host "
        f"nor the GPU ever works ahead: the GPU idles {idle:.0%} of the step.",
        advice="Unset CUDA_LAUNCH_BLOCKING; use it only to locate a failing kernel.",
        share=idle,
        evidence=(
            Evidence("CUDA_LAUNCH_BLOCKING", case.config.environment["CUDA_LAUNCH_BLOCKING"]),
            Evidence("GPU idle", 100 * idle, "%"),
        ),
        effort=Effort.ENVIRONMENT,
    )


def _anomaly(case: Case) -> Finding:
    checks = case.recorded_share(facts.operators_ms(case, _CHECKS))
    traces, forward = _TRACES, case.phases.get("forward", 0.0)
    looked_at = [o.count for o in facts.operators(case) if o.name in ("aten::any", "aten::isnan")]
    if looked_at and forward > 0:
        each = max(looked_at) / max(1, case.recorded_steps)
        traces = float(min(_MOST_TRACES, each * _TRACE_US / 1e3 / forward))
    share = min(1.0, checks + traces * case.step_share(forward))
    changes = [
        drop_waits(phase="backward"),
        remove_host(select_host(operator=_CHECKS, phase="backward")),
        remove_host(select_host(StretchKind.GAP, StretchKind.PYTHON, phase="backward"), _BETWEEN),
        remove_host(select_host(phase="forward"), traces),
        # The loss, if it is separate:
        remove_host(select_host(StretchKind.OPERATOR, phase="other"), traces),
    ]
    if case.device == "cuda":
        checked = select_kernels(operator=_CHECKS, phase="backward")
        changes.append(scale_kernels(checked, 0.0))
    return Finding(
        id=debug_modes.id,
        title="Anomaly detection is on",
        why="Autograd records a stack trace for every operator and checks each gradient for NaN, "
        "blocking on the device each time.",
        advice="Turn torch.autograd.set_detect_anomaly off; use it only to hunt a NaN.",
        share=share,
        evidence=(
            Evidence("torch.is_anomaly_enabled()", "True"),
            Evidence("NaN checks", 100 * checks, "%"),
        ),
        where=facts.sites(case, "backward"),
        predicted=facts.predict_gain(case, changes, "no stack traces and no NaN checks", 0.4),
        effort=Effort.ONE_LINE,
    )


def _deterministic(case: Case) -> Iterable[Finding]:
    fills = 0.0
    if case.switches.deterministic:
        fills = case.recorded_share(facts.operators_ms(case, _FILLS))
    slower = _DETERMINISTIC_COST * case.step_share(facts.category_ms(case, "convolution"))
    share = min(1.0, fills + slower)
    if share <= 0:
        return
    reason = "faster algorithms, and no filling of new tensors"
    changes = [scale_kernels(select_kernels("convolution"), 1 - _DETERMINISTIC_COST)]
    if fills:
        changes.append(remove_host(select_host(operator=_FILLS)))
        changes.append(scale_kernels(select_kernels(operator=_FILLS), 0.0))
    yield Finding(
        id=debug_modes.id,
        title="Deterministic algorithms are on",
        why="Convolutions and reductions cannot use their fastest algorithms"
        + (", and new tensors are filled before use." if fills else "."),
        advice="Leave torch.use_deterministic_algorithms and cudnn.deterministic off unless runs "
        "must be bit-identical; torch.utils.deterministic.fill_uninitialized_memory = False "
        "stops the filling alone.",
        share=share,
        evidence=(
            Evidence("filling", 100 * fills, "%"),
            Evidence("convolutions", facts.category_ms(case, "convolution"), "ms"),
        ),
        where=facts.sites(case, "forward"),
        predicted=facts.predict_gain(case, changes, reason, 0.8),
        effort=Effort.ONE_LINE,
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.LOW,
    )


_FEW_OF_FREE = 0.5
_LEAST_LARGE = 0.3
_LARGE_NS = 100_000
_CPU_BUSY = 0.8


@rule("compute.few_threads", "torch uses few of the CPU's free cores.")
def few_threads(case: Case) -> Iterable[Finding]:
    """A CPU program's large operators use half of the free cores or fewer."""
    now = case.switches.threads
    if case.device != "cpu" or not now:
        return
    workers = max((one.num_workers or 0 for one in case.loaders), default=0)
    physical = facts.machine_part(case, "cpu").get("physical_cores") or case.cores
    free = min(case.free_cores, float(physical)) - workers
    if free < 2 or now > _FEW_OF_FREE * free:
        return
    use = facts.cpu_percent(case)
    if use is not None and use >= 100 * _CPU_BUSY * case.cores:
        return
    large = _large_operator_share(case)
    if large < _LEAST_LARGE:
        return
    value = str(int(free))
    changes = facts.fix_changes(case, "threads", value)
    reason = f"large operators run on {value} threads instead of {now}"
    predicted = facts.predict_gain(case, changes, reason, 0.5)
    if facts.replay_gains_nothing(case, changes, predicted):
        return
    yield Finding(
        id=few_threads.id,
        title=f"torch uses {now} of {free:.0f} free cores"[:60],
        why=f"{large:.0%} of the step is operators large enough to parallelise, running on {now} "
        f"thread{'s' if now > 1 else ''}.",
        advice=f"Call torch.set_num_threads({value}), or unset OMP_NUM_THREADS and "
        "MKL_NUM_THREADS.",
        share=large,
        evidence=(
            Evidence("threads", int(now)),
            Evidence("free cores", case.free_cores),
            *((Evidence("CPU use", use, "%"),) if use is not None else ()),
        ),
        where=facts.sites(case, "forward"),
        predicted=predicted,
        fix=FixRef("threads", value),
        effort=Effort.ONE_LINE,
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.MEDIUM,
    )


def _large_operator_share(case: Case) -> float:
    """The share of the step in operators of at least 0.1 ms each; without a window, in the compute
    phases."""
    if not case.recorded_ms:
        return case.step_share(sum(case.phases.get(one, 0.0) for one in facts.COMPUTE_PHASES))
    large = (o.self_ns for o in facts.operators(case) if o.self_ns >= _LARGE_NS * o.count)
    return case.recorded_share(case.per_step(sum(large)))


_LEAST_LAUNCH_IDLE = 0.3
_SHORT_US = 15.0
_FEW_SAMPLES = 8
_MOST_GROWTH = 8
_CALL_US = 3.0  # the cost of calling an operator on a CPU, whatever its size: a prior
_LEAST_CALL_OVERHEAD = 0.4


@rule(
    "compute.small_batch",
    "Batches so small that launching the work takes longer than doing it.",
    symptoms=("memory.batch_could_grow",),
)
def small_batch(case: Case) -> Iterable[Finding]:
    """A step has 8 samples or fewer, and the GPU idles for launches between short kernels; on a
    CPU, calling operators takes 40% of the step."""
    samples = case.show.steps.samples_per_step if case.show else None
    if not samples or samples > _FEW_SAMPLES:
        return
    fixed = _fixed_ms(case)
    if fixed is None:
        return
    times = 2  # doubled until the part that grows with the batch fills the step
    while times < _MOST_GROWTH and times * (case.step_ms - fixed) < case.step_ms:
        times *= 2
    batch = facts.batch_size(case)
    grows = times * (case.step_ms - fixed)
    larger = max(grows, case.step_ms) if case.device == "cuda" else fixed + grows
    yield Finding(
        id=small_batch.id,
        title=f"Batches of {samples:.0f} are too small for this device",
        why=f"{case.step_share(fixed):.0%} of the step does not depend on the batch size: a "
        "larger batch takes hardly longer.",
        advice="Use larger batches and adjust the learning rate, or keep them and launch the "
        "step as a CUDA graph.",
        share=case.step_share(fixed),
        evidence=(
            Evidence("samples per step", float(samples)),
            Evidence("independent of the batch size", fixed, "ms"),
        ),
        where=tuple(Place(one.file, one.line) for one in case.loaders[:1] if one.file)
        or facts.sites(case, "forward"),
        predicted=case.reach(
            larger / times, f"time for the same samples in batches {times}× as large", 0.4
        ),
        fix=FixRef("batch", str(batch * times)) if batch else None,
        effort=Effort.ONE_ARGUMENT,
        kind=ChangeKind.SEMANTIC,
        confidence=Confidence.MEDIUM,
    )


def _fixed_ms(case: Case) -> float | None:
    """The part of a step that a larger batch would not lengthen; None if it is small."""
    if case.device == "cpu":
        calls = _CALL_US * facts.operator_calls(case) / 1e3
        enough = case.step_share(calls) >= _LEAST_CALL_OVERHEAD
        return min(calls, 0.9 * case.step_ms) if enough else None
    busy, count = facts.busy_ms(case), facts.kernels_per_step(case)
    unfed = facts.launch_idle_ms(case)
    if busy is None or not count or 1e3 * busy / count > _SHORT_US:
        return None
    if case.step_share(unfed) < _LEAST_LAUNCH_IDLE:
        return None
    short = sum(k.total_ns for k in kernel_rows(case) if k.total_ns < SHORT_NS * k.count)
    return unfed + min(busy, LATENCY_STAYS * case.per_step(short))
