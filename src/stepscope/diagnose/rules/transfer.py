"""Transfer rules: batches copied from pageable memory, blocking, repeated, not overlapped, brought
back.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from stepscope.analyze.replay import changes
from stepscope.diagnose.case import Case, in_ms, rule
from stepscope.diagnose.ranking import LEAST_GAIN
from stepscope.diagnose.rules import waits
from stepscope.diagnose.rules.facts import fix_changes
from stepscope.diagnose.rules.loading import loader_setting, loading
from stepscope.record.facts import SiteKind
from stepscope.record.finding import Confidence, Effort, Evidence, Finding, FixRef, Place
from stepscope.record.kinds import HostWait

_NON_BLOCKING = re.compile(r"non_blocking\s*=\s*True")
_RARE_COPY = 0.5  # times per step: rarer copies belong to epochs or evaluation


def pageable_copies(case: Case) -> list[waits.Wait]:
    """Lines in the loop that copy from pageable memory in most steps, costliest first."""
    found = [one for one in waits.of_run(case) if one.what is HostWait.PAGEABLE_COPY]
    often = [wait for wait in found if (wait.count or 0.0) >= _RARE_COPY]
    return often if case.device == "cuda" else []


class _Copies(NamedTuple):
    """Lines in the loop that copy to the device, and the host time spent there."""

    pageable: list[waits.Wait]
    """Data new in each step, from pageable memory."""
    pinned: list[waits.Wait]
    """Copies from pinned memory."""
    again: list[tuple[waits.Wait, str]]
    """From any memory: data no step changes, with the copied expression."""


def _copies(case: Case) -> _Copies:
    pageable, count = pageable_copies(case), case.run_steps
    pinned = [
        waits.Wait(HostWait.PINNED_COPY, s.total_ms / count, s.count / count, Place(s.file, s.line))
        for s in case.sites
        if case.device == "cuda" and s.what is SiteKind.H2D and s.count >= _RARE_COPY * count > 0
    ]
    found = [(wait, waits.moved_unchanged(case, wait.place)) for wait in (*pageable, *pinned)]
    again = [(wait, name) for wait, name in found if name is not None]
    repeated = {wait for wait, _ in again}
    return _Copies([wait for wait in pageable if wait not in repeated], pinned, again)


@rule(
    "data.no_pinning",
    "The loader's batches are in pageable memory, so each copy blocks the host.",
    symptoms=("transfer.blocking_copies", "transfer.not_overlapped"),
)
def no_pinning(case: Case) -> Iterable[Finding]:
    """The loader does not pin its batches, and copying them costs 2% of the step."""
    how, copies = loading(case), _copies(case).pageable
    if how is None or how.loader.pin_memory or not copies:
        return
    reason = "batches are copied from pinned memory while the host keeps launching"
    predicted = case.predict(*(fix_changes(case, "pin") or ()), reason=reason)
    told = Finding(
        id=no_pinning.id,
        title="Batches are copied from pageable memory",
        why="Copying a batch blocks the host {lost}: pageable memory has to pass through a "
        "driver buffer.",
        advice="Copy batches with `.to(device, non_blocking=True)`.",
        settings=(loader_setting("pin_memory", True),),
        share=0.0,
        where=how.places(),
        fix=FixRef("pin"),
        effort=Effort.ONE_ARGUMENT,
    )
    yield from waits.worth_removing(case, copies, predicted, told)


@rule(
    "transfer.blocking_copies",
    "Copies to the device block the host, other than those of an unpinned loader.",
    symptoms=("transfer.not_overlapped",),
)
def blocking_copies(case: Case) -> Iterable[Finding]:
    """Copies of tensors made on the host, or blocking copies of pinned ones, cost 2%."""
    how, copies = loading(case), _copies(case)
    pageable = copies.pageable
    if how is not None and not how.loader.pin_memory and pageable:
        return
    again = {wait for wait, _ in copies.again}
    some = pageable or [
        wait
        for wait in copies.pinned
        if wait not in again and not _NON_BLOCKING.search(waits.source_line(case, wait.place))
    ]
    if not some:
        return
    reason = "the host keeps launching while tensors are copied"
    predicted = case.predict(*(fix_changes(case, "pin") or ()), reason=reason)
    told = Finding(
        id=blocking_copies.id,
        title="Copies to the GPU block the host",
        why="Copies block the host {lost}: the tensors are in pageable memory and pass through a "
        "driver buffer.",
        advice="Create the tensors on the device (`device=device`), or in pinned memory "
        "(pin_memory=True, `.pin_memory()`), and copy them with non_blocking=True.",
        share=0.0,
    )
    if not pageable:
        told = replace(
            told,
            why="Copies block the host {lost}: the memory is pinned, but the calls do not pass "
            "non_blocking=True.",
            advice="Pass non_blocking=True to `.to(device)` or `.cuda()`.",
            fix=FixRef("pin") if how is not None else None,
            effort=Effort.ONE_ARGUMENT if len(some) == 1 else Effort.FEW_LINES,
        )
    yield from waits.worth_removing(case, some, predicted, told)


@rule("transfer.not_overlapped", "The device computes nothing while batches are copied to it.")
def copies_not_overlapped(case: Case) -> Iterable[Finding]:
    """Copying ahead, during compute, gains 2% more than copies that do not block."""
    copies = [one for one in (case.trace.copies if case.trace else ()) if one.direction == "HtoD"]
    exposed_ms = sum(case.per_step(one.total_ns * (1 - one.overlapped)) for one in copies)
    share = case.step_share(exposed_ms)
    lines = _copies(case)
    again, new = {wait.place for wait, _ in lines.again}, (*lines.pageable, *lines.pinned)
    # If only redundant copies are made, another rule reports them.
    only_repeated = bool(again) and again >= {wait.place for wait in new}
    if case.device != "cuda" or share < LEAST_GAIN or only_repeated:
        return
    reason = f"{in_ms(exposed_ms)} ms of copies overlap the previous step's compute"
    predicted = case.predict(*(fix_changes(case, "prefetch") or ()), reason=reason)
    first = case.predict(*(fix_changes(case, "pin") or ()))
    reached = first.step_ms if first is not None else case.step_ms
    better = predicted is not None and predicted.step_ms <= (1 - LEAST_GAIN) * reached
    if case.model is not None and not better:
        return
    total_ms = sum(case.per_step(one.total_ns) for one in copies)
    moved = sum(one.bytes or 0 for one in copies)
    rate = moved / max(1, sum(one.total_ns for one in copies))  # bytes per ns = GB/s
    yield Finding(
        id=copies_not_overlapped.id,
        title="The GPU idles while batches are copied",
        why=f"Copies to the GPU take {in_ms(total_ms)} ms per step; for {in_ms(exposed_ms)} ms of "
        "that nothing computes.",
        advice="Copy the next batch from pinned memory on its own stream while this one "
        "computes; or copy less: integers and bytes, converted on the device.",
        share=share,
        evidence=(
            Evidence("copies to the GPU", total_ms, "ms per step"),
            Evidence("not overlapped", exposed_ms, "ms per step"),
            Evidence("rate", rate, "GB/s"),
        ),
        where=waits.places(new),
        predicted=predicted,
        fix=FixRef("prefetch") if loading(case) is not None else None,
        confidence=Confidence.HIGH if case.model is not None else Confidence.MEDIUM,
    )


@rule("transfer.repeated_copies", "The same data is copied to the device every step.")
def repeated_copies(case: Case) -> Iterable[Finding]:
    """A line of the loop copies what the loop never changes, for 2% of the step."""
    found = _copies(case).again
    some = [wait for wait, _ in found]
    lost_ms = sum(wait.ms for wait in some)
    if not some or case.step_share(lost_ms) < LEAST_GAIN:
        return
    step_ms = case.step_ms - lost_ms
    if case.model is not None:  # not shorter than the replay without any copies
        none = case.predict(changes.unblock_copies(), changes.scale_copies("HtoD", 0.0))
        step_ms = max(step_ms, none.step_ms if none is not None else case.step_ms)
    predicted = case.reach(step_ms, "nothing is copied twice", doubt=0.5)
    if predicted is None:
        return
    names = ", ".join(dict.fromkeys(f"`{name}`" for _, name in found))
    yield Finding(
        id=repeated_copies.id,
        title="The same data is copied to the GPU every step",
        why=f"{names} {'is' if len(found) == 1 else 'are'} copied to the GPU again every step, "
        f"{in_ms(lost_ms)} ms, though the loop never changes it.",
        advice="Copy it once, before the loop; in a module, register it as a buffer "
        "(`self.register_buffer`), which moves with the model.",
        share=case.step_share(lost_ms),
        evidence=waits.evidence(some),
        where=waits.places(some),
        predicted=predicted,
        effort=Effort.ONE_LINE if len(some) == 1 else Effort.FEW_LINES,
        confidence=Confidence.MEDIUM,
    )


_KEPT_COPIES = 0.1  # of the steps: reading every ten steps


@rule("transfer.device_to_host", "Many tensors per step are copied back to the host, one by one.")
def device_to_host(case: Case) -> Iterable[Finding]:
    """Four tensors or more come back per step, for 2% of it."""
    some = waits.grouped(case).get(waits.WaitGroup.MANY_COPIES_BACK, [])
    reason = "tensors come back once in 10 steps while the host keeps launching"
    seldom = changes.scale_copies("DtoH", _KEPT_COPIES)
    told = Finding(
        id=device_to_host.id,
        title="Many small copies from the GPU block the host",
        why="Tensors are copied to the host{often}, each with its own wait: {lost}.",
        advice="Combine them on the device (torch.stack, torch.cat) and copy once, every 10 "
        "steps if that is often enough.",
        share=0.0,
    )
    predicted = waits.predict_without(case, some, reason, [seldom])
    return waits.worth_removing(case, some, predicted, told)
