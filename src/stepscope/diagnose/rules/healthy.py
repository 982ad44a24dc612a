"""What is fine, and how close the step is to the device's limit."""

from collections.abc import Iterable, Iterator

from stepscope.analyze.replay.known import kernel_rows
from stepscope.diagnose.case import Case, rule
from stepscope.diagnose.rules import facts
from stepscope.record.finding import ChangeKind, Confidence, Effort, Evidence, Finding
from stepscope.record.kinds import IdleCause

_SMALL = 0.02  # of the step
_BUSY = 0.9
_TENSOR_CORES = 0.9
_KNOWN = 0.5  # of the device's time must have a known minimum


@rule("healthy.fine", "What needs no attention.", healthy=True)
def healthy(case: Case) -> Iterable[Finding]:
    """Parts of the step that cost next to nothing; one finding names them all."""
    fine = list(_fine(case))
    if fine:
        yield Finding(
            id=healthy.id,
            title="OK: " + ", ".join(word for word, _ in fine[:3]),
            why="; ".join(f"{one.what} {one.value:.3g} {one.unit}".strip() for _, one in fine)
            + ".",
            advice="Nothing to do here.",
            share=0.0,
            evidence=tuple(one for _, one in fine),
            effort=Effort.NONE,
            kind=ChangeKind.NONE,
        )


@rule("healthy.limit", "How close the step is to the device's limit.", healthy=True)
def device_limit(case: Case) -> Iterable[Finding]:
    """The least time of most kernels is known, from measured or published ceilings."""
    limit_ms = device_limit_ms(case)
    if limit_ms is not None and case.step_ms:
        reached = min(1.0, limit_ms / case.step_ms)
        yield Finding(
            id=device_limit.id,
            title=f"The step runs at {reached:.0%} of the device's limit",
            why=f"At these shapes and precision, its kernels would take {limit_ms:.3g} ms at the "
            f"device's peak rates; the step takes {case.step_ms:.3g} ms.",
            advice="The rest is idle time and kernels below their peak.",
            share=0.0,
            evidence=(
                Evidence("least device time", limit_ms, "ms per step"),
                Evidence("step", case.step_ms, "ms"),
            ),
            effort=Effort.NONE,
            kind=ChangeKind.NONE,
            confidence=Confidence.MEDIUM,
        )


def device_limit_ms(case: Case) -> float | None:
    """The minimum device time for a step's kernels; None if too little is known.

    Kernels without a known minimum count with their measured time.
    """
    roofline = case.trace.roofline if case.trace else None
    if case.device != "cuda" or roofline is None or roofline.ceilings is None:
        return None
    least = known = 0.0
    for kind in roofline.kinds:
        if kind.least_ns is not None:
            known += kind.time_ns
            # A cache can exceed the memory's rate: a kernel's minimum is at most its measured time.
            least += min(kind.least_ns, kind.time_ns)
    busy = sum(kernel.total_ns for kernel in kernel_rows(case))
    if not busy or known < _KNOWN * busy:
        return None
    return case.per_step(least + max(0.0, busy - known))


def _fine(case: Case) -> Iterator[tuple[str, Evidence]]:
    """A name and a number for each part of the step that costs next to nothing."""
    wait = case.phases.get("data_wait")
    if wait is not None and case.loaders and wait < _SMALL * case.step_ms:
        yield "data", Evidence("data wait", wait, "ms per step")
    gpu = case.gpu
    busy = gpu.busy_fraction if gpu else None
    if busy is not None and busy >= _BUSY:
        yield "GPU busy", Evidence("GPU busy", busy * 100, "%")
    exposed = facts.exposed_copy_share(case) if case.device == "cuda" else None
    if exposed is not None and exposed < _SMALL:
        yield "copies", Evidence("copies not overlapped", exposed * 100, "% of the step")
    waits = facts.idle_share(case, IdleCause.SYNCHRONISATION) or 0.0
    if exposed is not None and waits < _SMALL:
        yield "waits", Evidence("idle for synchronisation", waits * 100, "% of the step")
    cores = case.trace.tensor_cores.matrix_share if case.trace else None
    if cores is not None and cores >= _TENSOR_CORES:
        yield "tensor cores", Evidence("matrix products on tensor cores", cores * 100, "%")
    optimizer = case.phases.get("optimizer")
    if optimizer is not None and 0 < optimizer < _SMALL * case.step_ms:
        yield "optimizer", Evidence("optimizer", optimizer, "ms per step")
