"""Sync rules: reading values, printing, masks, explicit synchronisation, empty_cache."""

import re
from collections.abc import Iterable

from stepscope.analyze.replay import changes
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules.facts import in_count, per_step, recorded_steps, step_share
from stepscope.diagnose.rules.transfer import pageable_copies
from stepscope.diagnose.rules.waits import (
    how_often,
    is_worth_fixing,
    lines_around,
    predict_without_waits,
    time_lost,
    wait_evidence,
    wait_finding,
    wait_share,
    waits_by_kind,
)
from stepscope.record.finding import Evidence, Finding, FixRef, Place

_SUMMED = re.compile(r"\+=.*\.item\(\)")


def _sync_item(case: Case) -> Iterable[Finding]:
    """Where reading numbers off the device holds the host up."""
    some = waits_by_kind(case).get("item", [])
    lines = [case.source(w.place.file, w.place.line) for w in some if w.place.file and w.place.line]
    summed = any(line is not None and _SUMMED.search(line) for line in lines)
    return wait_finding(
        case,
        "item",
        name=SYNC_ITEM.id,
        title="Reading a number off the GPU makes the host wait",
        why=(
            f"The program reads values with .item(), float() or a comparison{how_often(some)};"
            f" the host stands still for {time_lost(some)} and the device has nothing to do after."
        ),
        advice=(
            "Keep the value on the device (`total += loss.detach()`) and read it once, every some"
            " steps or at the end of the epoch."
        ),
        words="the host prepares the next step instead of waiting for a number",
        fix=FixRef("lazyitem") if summed else None,
        effort="one line" if len(some) == 1 else "some lines",
    )


SYNC_ITEM = Rule(
    id="sync.item",
    cause="`.item()` and the like: the host waits until the device has computed a number.",
    find=_sync_item,
    family="wait",
)


def _sync_cpu(case: Case) -> Iterable[Finding]:
    """Where a few tensors a step are brought back and waited for."""
    some = waits_by_kind(case).get("cpu", [])
    return wait_finding(
        case,
        "cpu",
        name=SYNC_CPU.id,
        title="Bringing tensors back to the host makes it wait",
        why=(
            f"Tensors are copied back with .cpu(), .numpy() or .tolist(){how_often(some)};"
            f" the host stands still for {time_lost(some)}."
        ),
        advice=(
            "Compute on the device what is wanted of them and bring back results every some steps;"
            " or copy into pinned memory with non_blocking=True and look at them a step later."
        ),
        words="the host prepares the next step instead of waiting for tensors",
    )


SYNC_CPU = Rule(
    id="sync.cpu",
    cause="`.cpu()`, `.numpy()`, `.tolist()`: the host waits for tensors to come back.",
    find=_sync_cpu,
    family="wait",
)


def _sync_print(case: Case) -> Iterable[Finding]:
    """Where lines that print or log wait for what they show."""
    some = waits_by_kind(case).get("print", [])
    return wait_finding(
        case,
        "print",
        name=SYNC_PRINT.id,
        title="Printing values of the GPU makes the host wait",
        why=(
            f"A line that prints or logs reads tensors off the device{how_often(some)};"
            f" the host stands still for {time_lost(some)}."
        ),
        advice=(
            "Print every so many steps (`if step % 100 == 0:`), and keep what is shown on the"
            " device until then."
        ),
        words="the host no longer waits for values to print",
        effort="one line",
    )


SYNC_PRINT = Rule(
    id="sync.print",
    cause="Tensors are printed or logged in the loop.",
    find=_sync_print,
    family="wait",
)


def _sync_nonzero(case: Case) -> Iterable[Finding]:
    """Where the host has to learn how large a result is before it can go on."""
    some = waits_by_kind(case).get("nonzero", [])
    return wait_finding(
        case,
        "nonzero",
        name=SYNC_NONZERO.id,
        title="Masks and nonzero make the host wait for a size",
        why=(
            "Indexing by a boolean mask, nonzero and unique give results whose size the host has"
            f" to wait for{how_often(some)}: {time_lost(some)}."
        ),
        advice=(
            "Keep the shape fixed: torch.where(mask, x, 0), a multiplication by the mask, or"
            " a loss with weights, and divide by mask.sum() on the device."
        ),
        words="shapes are known without asking the device",
    )


SYNC_NONZERO = Rule(
    id="sync.nonzero",
    cause="nonzero, boolean masks and unique: the host waits to learn the size of the result.",
    find=_sync_nonzero,
)


def _sync_synchronize(case: Case) -> Iterable[Finding]:
    """Where the program asks to wait for the device."""
    some = waits_by_kind(case).get("synchronize", [])
    whole = any(wait.what == "synchronize" for wait in some) and case.show is not None
    return wait_finding(
        case,
        "synchronize",
        name=SYNC_SYNCHRONIZE.id,
        title="The program waits for the GPU on purpose",
        why=(
            f"The loop synchronises with the device{how_often(some)}: the host waits"
            f" {time_lost(some)} and"
            " the device then has nothing queued."
        ),
        advice=(
            "Delete torch.cuda.synchronize() from the loop. Results are right without it; to time"
            " steps, record CUDA events and read them later."
        ),
        words="the host goes on launching while the device works",
        fix=FixRef("nosync") if whole else None,
        effort="one line",
    )


SYNC_SYNCHRONIZE = Rule(
    id="sync.synchronize",
    cause="`torch.cuda.synchronize()` in the loop.",
    find=_sync_synchronize,
    family="wait",
)


_FREE_CALLS = re.compile(r"^(cuda|hip)Free(_v\d+)?$|^cuMem(Unmap|Release|Free)(_v\d+)?$")
_MEMORY_CALLS = (
    r"^((cuda|hip)(Free|Malloc)|cuMem(Unmap|Release|Free|Create|Map|SetAccess|Alloc))(_v\d+)?$"
)
_LEAST_FREES = 0.5  # times a step
_NEAR = (3, 12)  # source lines kept before and after each line a run points at


def _sync_empty_cache(case: Case) -> Iterable[Finding]:
    """Where steps in mid-training free device memory, though the allocator was not short of it."""
    calls = ((case.trace or {}).get("host") or {}).get("runtime") or []
    freed = sum(one["count"] for one in calls if _FREE_CALLS.search(one["name"]))
    short = (((case.show or {}).get("gpu") or {}).get("allocator_retries") or 0) > 0
    if (
        case.device != "cuda"
        or short
        or not recorded_steps(case)
        or freed < _LEAST_FREES * recorded_steps(case)
    ):
        return
    spent = sum(one["total_ns"] for one in calls if re.search(_MEMORY_CALLS, one["name"]))
    lost_ms = per_step(case, spent)
    predicted = case.predict(
        changes.drop_waits("empty_cache"),
        changes.drop_host(_MEMORY_CALLS),
        words="memory stays with the program from step to step",
    )
    if not is_worth_fixing(case, predicted, lost_ms):
        return
    where = _empty_cache_lines(case)
    a_step = freed / recorded_steps(case)
    yield Finding(
        id=SYNC_EMPTY_CACHE.id,
        title="GPU memory is given back and fetched anew in the loop",
        why=(
            f"The driver frees memory {in_count(a_step)} times a step, waiting for all work each"
            f" time, and then has to provide it again: {in_ms(lost_ms)} ms of each recorded step."
        ),
        advice=(
            "Delete torch.cuda.empty_cache() from the loop: the allocator hands memory on by"
            " itself, and a step needs what the one before had."
        ),
        share=wait_share(case, predicted, step_share(case, lost_ms) * case.step_ms),
        evidence=(
            Evidence("memory freed by the driver", a_step, "times a step"),
            Evidence("freeing and allocating", lost_ms, "ms a recorded step"),
        ),
        where=where,
        predicted=predicted,
        effort="one line",
        kind="exact",
        confidence="high" if where else "medium",
    )


SYNC_EMPTY_CACHE = Rule(
    id="sync.empty_cache",
    cause="Memory is given back to the driver in the loop, and asked for again.",
    find=_sync_empty_cache,
)


def _empty_cache_lines(case: Case) -> tuple[Place, ...]:
    """Lines near those the run points at that ask for it."""
    found = dict[Place, None]()
    for site in (case.show or {}).get("sites") or ():
        at = Place(site.get("file"), site.get("line"))
        for number, line in lines_around(case, at, *_NEAR):
            if "empty_cache(" in line:
                found[Place(site["file"], number)] = None
    return tuple(found)


def _sync_together(case: Case) -> Iterable[Finding]:
    """Where dropping all waits gains, and dropping those of any one kind does not."""
    groups, copied = waits_by_kind(case), pageable_copies(case)
    if case.model is None or len(groups) + bool(copied) < 2:
        return
    single = [predict_without_waits(case, some, "") for some in groups.values()]
    single.append(case.predict(changes.unblock_copies(), words=""))
    if any(is_worth_fixing(case, one, 0.0) for one in single):
        return
    all_ = sorted((w for some in (*groups.values(), copied) for w in some), key=lambda w: -w.ms)
    predicted = case.predict(
        changes.drop_waits(),
        changes.unblock_copies(),
        words=f"the host waits at none of {len(all_)} lines and prepares the next step instead",
    )
    if not is_worth_fixing(case, predicted, 0.0):
        return
    yield Finding(
        id=SYNC_TOGETHER.id,
        title=f"The host waits for the GPU at {len(all_)} lines of the loop",
        why=(
            "Removing any one of these waits gains nothing, because the next one waits for the"
            " same work; without all of them the host runs ahead of the device."
        ),
        advice=(
            "Remove them together: keep values on the device, delete synchronize(), copy batches"
            " from pinned memory with non_blocking=True."
        ),
        share=wait_share(case, predicted, 0.0),
        evidence=wait_evidence(all_),
        where=tuple(dict.fromkeys(wait.place for wait in all_))[:6],
        predicted=predicted,
        effort="some lines",
        kind="exact",
        confidence="medium",
    )


SYNC_TOGETHER = Rule(
    id="sync.together",
    cause="Several waits, none of which alone costs anything: the next one absorbs it.",
    find=_sync_together,
    family="wait",
)
