"""Sync rules: reading values, printing, masks, explicit synchronisation, empty_cache."""

import re
from collections.abc import Iterable

from stepscope.analyze.replay import changes
from stepscope.diagnose.case import Case, in_ms, rule
from stepscope.diagnose.rules import facts, waits
from stepscope.diagnose.rules.transfer import pageable_copies
from stepscope.record.finding import Confidence, Effort, Evidence, Finding, FixRef, Place
from stepscope.record.kinds import HostWait

_SUMMED = re.compile(r"\+=.*\.item\(\)")


@rule(
    "sync.item",
    "`.item()`, `float()` and comparisons block the host until the device has the value.",
    family="wait",
)
def sync_item(case: Case) -> Iterable[Finding]:
    """Reading values off the device costs 2% of the step."""
    some = waits.grouped(case).get(waits.WaitGroup.ITEM, [])
    summed = any(_SUMMED.search(waits.source_line(case, wait.place)) for wait in some)
    reason = "the host prepares the next step instead of waiting for a value"
    told = Finding(
        id=sync_item.id,
        title="Reading values with .item() blocks the host",
        why="Values are read with .item(), float() or a comparison{often}: the host blocks "
        "{lost}, and the GPU then has nothing queued.",
        advice="Keep the value on the device (`total += loss.detach()`) and read it every N "
        "steps or once per epoch.",
        share=0.0,
        fix=FixRef("lazyitem") if summed else None,
        effort=Effort.ONE_LINE if len(some) == 1 else Effort.FEW_LINES,
    )
    return waits.worth_removing(case, some, waits.predict_without(case, some, reason), told)


@rule(
    "sync.cpu",
    "`.cpu()`, `.numpy()` and `.tolist()` block the host until the tensor has arrived.",
    family="wait",
)
def sync_cpu(case: Case) -> Iterable[Finding]:
    """Copying a few tensors back costs 2% of the step."""
    some = waits.grouped(case).get(waits.WaitGroup.CPU, [])
    reason = "the host prepares the next step instead of waiting for tensors"
    told = Finding(
        id=sync_cpu.id,
        title="Copying tensors back with .cpu() blocks the host",
        why="Tensors are copied back with .cpu(), .numpy() or .tolist(){often}: the host blocks "
        "{lost}.",
        advice="Reduce them on the device and copy results back every N steps; or copy into "
        "pinned memory with non_blocking=True and read it a step later.",
        share=0.0,
    )
    return waits.worth_removing(case, some, waits.predict_without(case, some, reason), told)


@rule("sync.print", "Printing or logging tensors in the loop blocks the host.", family="wait")
def sync_print(case: Case) -> Iterable[Finding]:
    """Lines that print or log GPU values cost 2% of the step."""
    some = waits.grouped(case).get(waits.WaitGroup.PRINT, [])
    reason = "the host no longer waits for values to print"
    told = Finding(
        id=sync_print.id,
        title="Printing GPU values blocks the host",
        why="A line that prints or logs reads tensors off the GPU{often}: the host blocks {lost}.",
        advice="Print every N steps (`if step % 100 == 0:`) and keep the values on the device "
        "until then.",
        share=0.0,
        effort=Effort.ONE_LINE,
    )
    return waits.worth_removing(case, some, waits.predict_without(case, some, reason), told)


@rule(
    "sync.nonzero",
    "nonzero, boolean masks and unique block the host until it knows the size of the result.",
)
def sync_nonzero(case: Case) -> Iterable[Finding]:
    """Operators with data-dependent shapes cost 2% of the step."""
    some = waits.grouped(case).get(waits.WaitGroup.NONZERO, [])
    reason = "shapes are known without asking the device"
    told = Finding(
        id=sync_nonzero.id,
        title="Masks and nonzero() block the host",
        why="Boolean indexing, nonzero and unique have data-dependent shapes, which the host has "
        "to wait for{often}: {lost}.",
        advice="Keep shapes fixed: torch.where(mask, x, 0), multiply by the mask, or weight the "
        "loss and divide by mask.sum() on the device.",
        share=0.0,
    )
    return waits.worth_removing(case, some, waits.predict_without(case, some, reason), told)


@rule("sync.synchronize", "`torch.cuda.synchronize()` in the loop.", family="wait")
def sync_synchronize(case: Case) -> Iterable[Finding]:
    """Explicit synchronisation costs 2% of the step."""
    some = waits.grouped(case).get(waits.WaitGroup.SYNCHRONIZE, [])
    whole = any(wait.what is HostWait.SYNCHRONIZE for wait in some) and case.show is not None
    reason = "the host keeps launching while the GPU works"
    told = Finding(
        id=sync_synchronize.id,
        title="torch.cuda.synchronize() blocks the host",
        why="The loop synchronises with the GPU{often}: the host blocks {lost}, and the GPU then "
        "has nothing queued.",
        advice="Delete torch.cuda.synchronize() from the loop: results stay correct. To time "
        "steps, record CUDA events and read them later.",
        share=0.0,
        fix=FixRef("nosync") if whole else None,
        effort=Effort.ONE_LINE,
    )
    return waits.worth_removing(case, some, waits.predict_without(case, some, reason), told)


_FREE_CALLS = re.compile(r"^(cuda|hip)Free(_v\d+)?$|^cuMem(Unmap|Release|Free)(_v\d+)?$")
_MEMORY_CALLS = (
    r"^((cuda|hip)(Free|Malloc)|cuMem(Unmap|Release|Free|Create|Map|SetAccess|Alloc))(_v\d+)?$"
)
_LEAST_FREES = 0.5  # times per step
_NEAR = (3, 12)  # source lines kept before and after each line a run points at


@rule(
    "sync.empty_cache",
    "The loop returns memory to the driver and allocates it again.",
    symptoms=("launch.other_code",),
)
def sync_empty_cache(case: Case) -> Iterable[Finding]:
    """Steps free device memory although the allocator is not short of it."""
    calls, gpu = facts.runtime_calls(case), case.gpu
    freed = sum(one.count for one in calls if _FREE_CALLS.search(one.name))
    short = gpu is not None and (gpu.allocator_retries or 0) > 0
    seldom = freed < _LEAST_FREES * case.recorded_steps
    if case.device != "cuda" or short or seldom or not case.recorded_steps:
        return
    spent = sum(one.total_ns for one in calls if re.search(_MEMORY_CALLS, one.name))
    lost_ms = case.per_step(spent)
    reused = (changes.drop_waits("empty_cache"), changes.drop_host(_MEMORY_CALLS))
    predicted = case.predict(*reused, reason="memory is reused from step to step")
    if not waits.is_worth_fixing(case, predicted, lost_ms):
        return
    calling = {
        Place(site.file, number): None
        for site in case.sites
        for number, line in waits.lines_around(case, Place(site.file, site.line), *_NEAR)
        if "empty_cache(" in line
    }
    frees = freed / case.recorded_steps
    yield Finding(
        id=sync_empty_cache.id,
        title="GPU memory is freed and reallocated every step",
        why=f"The driver frees memory {facts.in_count(frees)} times per step, each time waiting "
        f"for all GPU work, then allocates it again: {in_ms(lost_ms)} ms per recorded step.",
        advice="Delete torch.cuda.empty_cache() from the loop: the allocator reuses memory by "
        "itself.",
        share=waits.share(case, predicted, case.step_share(lost_ms) * case.step_ms),
        evidence=(
            Evidence("frees by the driver", frees, "per step"),
            Evidence("freeing and allocating", lost_ms, "ms per recorded step"),
        ),
        where=tuple(calling),
        predicted=predicted,
        effort=Effort.ONE_LINE,
        confidence=Confidence.HIGH if calling else Confidence.MEDIUM,
    )


@rule(
    "sync.together",
    "Several waits that only gain together: the next one absorbs what one of them frees.",
    family="wait",
)
def sync_together(case: Case) -> Iterable[Finding]:
    """Removing all waits gains, removing those of any one kind does not."""
    groups, copied = waits.grouped(case), pageable_copies(case)
    if case.model is None or len(groups) + bool(copied) < 2:
        return
    single = [waits.predict_without(case, some) for some in groups.values()]
    single.append(case.predict(changes.unblock_copies()))
    if any(waits.is_worth_fixing(case, one, 0.0) for one in single):
        return
    all_ = sorted((w for some in (*groups.values(), copied) for w in some), key=lambda w: -w.ms)
    reason = f"the host prepares the next step instead of waiting at {len(all_)} lines"
    predicted = case.predict(changes.drop_waits(), changes.unblock_copies(), reason=reason)
    if not waits.is_worth_fixing(case, predicted, 0.0):
        return
    yield Finding(
        id=sync_together.id,
        title=f"The host blocks on the GPU at {len(all_)} lines",
        why="Removing one of these waits gains nothing, because the next one waits for the same "
        "work; without all of them the host runs ahead of the GPU.",
        advice="Remove them together: keep values on the device, delete synchronize(), copy "
        "batches from pinned memory with non_blocking=True.",
        share=waits.share(case, predicted, 0.0),
        evidence=waits.evidence(all_),
        where=waits.places(all_),
        predicted=predicted,
        confidence=Confidence.MEDIUM,
    )
