"""Compute rules about settings: debugging aids left on, too few threads, small batches."""

from collections.abc import Iterable

from stepscope.analyze.replay.changes import drop_waits, remove_host, scale_kernels
from stepscope.analyze.replay.known import LATENCY_STAYS, SHORT_NS
from stepscope.analyze.replay.tasks import StretchKind, select_host, select_kernels
from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules.facts import (
    batch_size,
    busy_ms,
    category_ms,
    config,
    kernels_per_step,
    launch_idle_ms,
    operator_calls,
    operators,
    operators_ms,
    per_step,
    predict_gain,
    recorded_kernels,
    recorded_share,
    recorded_step_ms,
    recorded_steps,
    replay_gains_nothing,
    sites,
    step_share,
    switches,
)
from stepscope.fixes.registry import fix_named
from stepscope.record.finding import Evidence, Finding, FixRef, Place

_CHECKS = r"^aten::(isnan|ne|any|_is_any_true|is_nonzero|item|_local_scalar_dense)$"
_TRACE_US = 80.0  # to keep a stack trace, for each gradient that is looked at: a prior
_TRACES = 0.2  # of forward, where these were not counted
_MOST_TRACES = 0.9
_BETWEEN = 0.8  # of what passes between backward's operators: the looking itself, a prior
_FILLS = r"^aten::fill_$"
_DETERMINISTIC_COST = 0.1  # of convolutions: what deterministic algorithms cost, a prior


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
    checks = recorded_share(case, operators_ms(case, _CHECKS))
    traces = _traces(case)
    share = min(1.0, checks + traces * step_share(case, case.phases.get("forward", 0.0)))
    changes = [
        drop_waits(phase="backward"),
        remove_host(select_host(operator=_CHECKS, phase="backward")),
        remove_host(select_host(StretchKind.GAP, StretchKind.PYTHON, phase="backward"), _BETWEEN),
        remove_host(select_host(phase="forward"), traces),
        remove_host(
            select_host(StretchKind.OPERATOR, phase="other"), traces
        ),  # the loss, where it is apart
    ]
    if case.device == "cuda":
        checked = select_kernels(operator=_CHECKS, phase="backward")
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
        predicted=predict_gain(
            case, changes, "no stack traces are kept and nothing is checked", 0.4
        ),
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
    each = max(counts) / max(1, recorded_steps(case))
    return float(min(_MOST_TRACES, each * _TRACE_US / 1e3 / forward))


def _deterministic(case: Case) -> Finding | None:
    fills = (
        recorded_share(case, operators_ms(case, _FILLS))
        if switches(case).get("deterministic")
        else 0.0
    )
    slower = _DETERMINISTIC_COST * step_share(case, category_ms(case, "convolution"))
    share = min(1.0, fills + slower)
    if share <= 0:
        return None
    changes = [scale_kernels(select_kernels("convolution"), 1 - _DETERMINISTIC_COST)]
    if fills:
        changes.append(remove_host(select_host(operator=_FILLS)))
        changes.append(scale_kernels(select_kernels(operator=_FILLS), 0.0))
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
        predicted=predict_gain(
            case, changes, "faster algorithms, and memory is not filled first", 0.8
        ),
        effort="one line",
        kind="numeric",
        confidence="low",
    )


_FEW_OF_FREE = 0.5
_LEAST_LARGE = 0.3
_LARGE_NS = 100_000
_CPU_BUSY = 0.8


def _few_threads(case: Case) -> Iterable[Finding]:
    """Where a CPU program's large operators run on half of the free cores or fewer."""
    now = switches(case).get("threads")
    if case.device != "cpu" or not now:
        return
    free = _free_cores(case)
    if free < 2 or now > _FEW_OF_FREE * free:
        return
    use = ((case.show or {}).get("host") or {}).get("cpu_percent")
    if use is not None and use >= 100 * _CPU_BUSY * case.cores:
        return
    large = _large_operator_share(case)
    if large < _LEAST_LARGE:
        return
    value = str(int(free))
    changes = fix_named("threads").predict(value, case)
    words = f"large operators are shared out among {value} threads instead of {now}"
    predicted = predict_gain(case, changes, words, 0.5)
    if replay_gains_nothing(case, changes, predicted):
        return
    yield Finding(
        id=FEW_THREADS.id,
        title=f"torch uses {now} of {free:.0f} free cores"[:60],
        why=(
            f"{large:.0%} of the step are operators large enough to be shared out, and they run on "
            f"{now} thread{'s' if now > 1 else ''}."
        ),
        advice=(
            f"Call torch.set_num_threads({value}), or leave OMP_NUM_THREADS and MKL_NUM_THREADS "
            "unset."
        ),
        share=large,
        evidence=(
            Evidence("threads", int(now)),
            Evidence("usable cores", case.cores),
            *((Evidence("processor in use", use, "%"),) if use is not None else ()),
        ),
        where=sites(case, "forward"),
        predicted=predicted,
        fix=FixRef("threads", value),
        effort="one line",
        kind="numeric",
        confidence="medium",
    )


FEW_THREADS = Rule(
    id="compute.few_threads",
    cause="torch uses few of the processor's cores.",
    find=_few_threads,
)


def _free_cores(case: Case) -> float:
    """Physical cores that neither hyperthreads nor the loader's workers share."""
    cpu = (config(case).get("machine") or {}).get("cpu") or {}
    loaders = (case.show or {}).get("loaders") or []
    workers = max((int(x.get("num_workers") or 0) for x in loaders), default=0)
    return min(case.cores, float(cpu.get("physical_cores") or case.cores)) - workers


def _large_operator_share(case: Case) -> float:
    """The share of the step in operators that take at least 0.1 ms each; without a window that
    of the phases that compute."""
    if not recorded_step_ms(case):
        computing = (case.phases.get(p, 0.0) for p in ("forward", "backward", "optimizer"))
        return step_share(case, sum(computing))
    spent = sum(o["self_ns"] for o in operators(case) if o["self_ns"] >= _LARGE_NS * o["count"])
    return float(min(1.0, spent / 1e6 / max(1, recorded_steps(case)) / recorded_step_ms(case)))


_LEAST_LAUNCH_IDLE = 0.3
_SHORT_US = 15.0
_FEW_SAMPLES = 8
_MOST_GROWTH = 8
_CALL_US = 3.0  # what calling an operator costs on a processor, whatever its size: a prior
_LEAST_CALL_OVERHEAD = 0.4


def _small_batch(case: Case) -> Iterable[Finding]:
    """Where 8 samples or fewer make a step, and kernels are short while the GPU idles for launches;
    on a processor, where calling operators takes 40% of the step."""
    samples = ((case.show or {}).get("steps") or {}).get("samples_per_step")
    if not samples or samples > _FEW_SAMPLES:
        return
    fixed = _fixed_ms(case)
    if fixed is None:
        return
    times = 2  # doubled as long as what grows with the batch is not the whole step yet
    while times < _MOST_GROWTH and times * (case.step_ms - fixed) < case.step_ms:
        times *= 2
    batch = batch_size(case)
    grows = times * (case.step_ms - fixed)
    larger = max(grows, case.step_ms) if case.device == "cuda" else fixed + grows
    words = f"for as many samples, {times} times as many of them in a step"
    yield Finding(
        id=SMALL_BATCH.id,
        title=f"Batches of {samples:.0f} are too small for this device",
        why=(
            f"{step_share(case, fixed):.0%} of the step does not depend on the batch's size: a"
            " larger "
            "one would take hardly longer."
        ),
        advice=(
            "Take larger batches with a learning rate to match, or keep the step small and launch "
            "it as a CUDA graph."
        ),
        share=step_share(case, fixed),
        evidence=(
            Evidence("samples per step", float(samples)),
            Evidence("independent of the batch", fixed, "ms"),
        ),
        where=_batch_places(case),
        predicted=case.reach(larger / times, words, 0.4),
        fix=FixRef("batch", str(batch * times)) if batch else None,
        effort="one argument",
        kind="semantic",
        confidence="medium",
    )


SMALL_BATCH = Rule(
    id="compute.small_batch",
    cause="Batches so small that starting the work takes longer than doing it.",
    find=_small_batch,
    symptoms=("memory.batch_could_grow",),
)


def _fixed_ms(case: Case) -> float | None:
    """What of a step a larger batch would not lengthen; None where that is little."""
    if case.device == "cpu":
        calls = _CALL_US * operator_calls(case) / 1e3
        return (
            min(calls, 0.9 * case.step_ms)
            if step_share(case, calls) >= _LEAST_CALL_OVERHEAD
            else None
        )
    busy, unfed, count = busy_ms(case), launch_idle_ms(case), kernels_per_step(case)
    if (
        busy is None
        or not count
        or step_share(case, unfed) < _LEAST_LAUNCH_IDLE
        or 1e3 * busy / count > _SHORT_US
    ):
        return None
    short = sum(
        k["total_ns"] for k in recorded_kernels(case) if k["total_ns"] < SHORT_NS * k["count"]
    )
    return unfed + min(busy, LATENCY_STAYS * per_step(case, short))


def _batch_places(case: Case) -> tuple[Place, ...]:
    loaders = (case.show or {}).get("loaders") or []
    known = [Place(x["file"], x["line"]) for x in loaders[:1] if x.get("file")]
    return tuple(known) or sites(case, "forward")
