"""What is fine, and how far the step is from what its device can do."""

from collections.abc import Iterable, Iterator

from stepscope.diagnose.case import Case, Rule
from stepscope.record.finding import Evidence, Finding

_SMALL = 0.02  # of the step
_BUSY = 0.9
_TENSOR_CORES = 0.9
_KNOWN = 0.5  # of the device's time must have a known least time to speak of a limit


def _healthy(case: Case) -> Iterable[Finding]:
    """Where at least one part of the step costs next to nothing; one finding names them all."""
    fine = list(_fine(case))
    if fine:
        yield Finding(
            id=HEALTHY.id,
            title="Fine: " + ", ".join(word for word, _ in fine[:3]),
            why="; ".join(f"{one.what} {one.value:.3g} {one.unit}".strip() for _, one in fine)
            + ".",
            advice="Nothing to do here.",
            share=0.0,
            evidence=tuple(one for _, one in fine),
            effort="none",
            kind="none",
        )


HEALTHY = Rule(
    id="healthy.fine",
    cause="What is fine.",
    find=_healthy,
    healthy=True,
)


def _device_limit(case: Case) -> Iterable[Finding]:
    """Where the least time of most kernels is known, from measured or published ceilings."""
    limit_ms = device_limit_ms(case)
    if limit_ms is not None and case.step_ms:
        reached = min(1.0, limit_ms / case.step_ms)
        yield Finding(
            id=DEVICE_LIMIT.id,
            title=f"The step reaches {reached:.0%} of the device's limit",
            why=(
                f"Its kernels, at the present shapes and precision, would take {limit_ms:.3g} ms "
                f"at the device's own rates; the step takes {case.step_ms:.3g} ms."
            ),
            advice="What remains is in idle time and in kernels below their ceiling.",
            share=0.0,
            evidence=(
                Evidence("least device time of a step", limit_ms, "ms"),
                Evidence("step", case.step_ms, "ms"),
            ),
            effort="none",
            kind="none",
            confidence="medium",
        )


DEVICE_LIMIT = Rule(
    id="healthy.limit",
    cause="How far the step is from what its device can do.",
    find=_device_limit,
    healthy=True,
)


def device_limit_ms(case: Case) -> float | None:
    """The least time the device needs for a step's kernels; None where too little is known.

    Kernels whose least time is not known count with the time they took.
    """
    trace = case.trace or {}
    roofline, steps = trace.get("roofline") or {}, (trace.get("steps") or {}).get("count") or 0
    if case.device != "cuda" or not roofline.get("ceilings") or not steps:
        return None
    least = known = 0.0
    for kind in roofline.get("kinds") or []:
        if kind["least_ns"] is not None:
            known += kind["time_ns"]
            # A cache can serve more than the memory's rate: no kernel is counted as slower for it.
            least += min(kind["least_ns"], kind["time_ns"])
    busy = sum(kernel["total_ns"] for kernel in trace.get("kernels") or [])
    if not busy or known < _KNOWN * busy:
        return None
    return float(least + max(0.0, busy - known)) / steps / 1e6


def _fine(case: Case) -> Iterator[tuple[str, Evidence]]:
    """A word and a number for each part of the step that costs next to nothing."""
    show, trace = case.show or {}, case.trace or {}
    wait = case.phases.get("data_wait")
    if wait is not None and case.step_ms and show.get("loaders") and wait < _SMALL * case.step_ms:
        yield "data", Evidence("waiting for data", wait, "ms a step")
    gpu = show.get("gpu") or {}
    busy = gpu.get("busy_fraction")
    if busy is not None and busy >= _BUSY:
        yield "GPU busy", Evidence("GPU busy", busy * 100, "%")
    told = trace.get("breakdown_ns") or {}
    if case.device == "cuda" and told.get("wall"):
        exposed = (told.get("exposed_copy") or 0) / told["wall"]
        if exposed < _SMALL:
            yield "copies", Evidence("copies that nothing hides", exposed * 100, "% of the step")
        waits = ((trace.get("idle_ns") or {}).get("synchronisation") or 0) / told["wall"]
        if waits < _SMALL:
            yield "waits", Evidence("idle for synchronisation", waits * 100, "% of the step")
    cores = (trace.get("tensor_cores") or {}).get("matrix_share")
    if cores is not None and cores >= _TENSOR_CORES:
        yield "tensor cores", Evidence("products on tensor cores", cores * 100, "%")
    optimizer = case.phases.get("optimizer")
    if optimizer is not None and 0 < optimizer < _SMALL * case.step_ms:
        yield "optimizer", Evidence("optimizer", optimizer, "ms a step")
