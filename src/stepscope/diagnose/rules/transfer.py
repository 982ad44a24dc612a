"""Transfer rules: batches copied from pageable memory, blocking, repeated, not overlapped, brought
back.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from stepscope.analyze.replay import changes
from stepscope.analyze.replay.changes import scale_copies
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.ranking import LEAST_GAIN
from stepscope.diagnose.rules.facts import per_step, place_of_line, run_steps, step_share
from stepscope.diagnose.rules.loading import loader_places, loading
from stepscope.diagnose.rules.waits import (
    Wait,
    how_often,
    is_worth_fixing,
    moved_unchanged,
    run_waits,
    time_lost,
    wait_evidence,
    wait_finding,
    wait_share,
    waits_by_kind,
)
from stepscope.fixes.registry import fix_named
from stepscope.record.finding import Evidence, Finding, FixRef, Place, Predicted

_RARE_COPY = 0.5  # times a step: what is copied less often belongs to epochs or evaluation


def pageable_copies(case: Case) -> list[Wait]:
    """Lines of the loop that copy from pageable memory in most steps, costliest first."""
    if case.device != "cuda":
        return []
    return [
        w for w in run_waits(case) if w.what == "pageable copy" and (w.count or 0.0) >= _RARE_COPY
    ]


def repeated_copies(case: Case) -> list[tuple[Wait, str]]:
    """Those that copy what no step changes, with the expression copied."""
    found = [
        (wait, moved_unchanged(case, wait.place))
        for wait in (*pageable_copies(case), *_pinned_copies(case))
    ]
    return [(wait, name) for wait, name in found if name is not None]


def _pageable_batch_copies(case: Case) -> list[Wait]:
    """Pageable copies of what is new in each step."""
    again = {wait for wait, _ in repeated_copies(case)}
    return [wait for wait in pageable_copies(case) if wait not in again]


def _pinned_copies(case: Case) -> list[Wait]:
    """Lines that copy from pinned memory, and the time the host spends there."""
    count = run_steps(case)
    if case.device != "cuda" or not count:
        return []
    return [
        Wait("h2d", one["total_ms"] / count, one["count"] / count, place_of_line(one))
        for one in (case.show or {}).get("sites") or ()
        if one["what"] == "h2d" and one["count"] >= _RARE_COPY * count
    ]


def _recorded_copies(case: Case, direction: str) -> list[Mapping[str, Any]]:
    """The window's copies of one direction, by memory."""
    found = (case.trace or {}).get("copies") or []
    return [one for one in found if one["direction"] == direction]


def _does_not_block(case: Case, place: Place) -> bool:
    """Whether the line already asks not to wait."""
    line = case.source(place.file, place.line) if place.file and place.line else None
    return line is not None and re.search(r"non_blocking\s*=\s*True", line) is not None


def _no_pinning(case: Case) -> Iterable[Finding]:
    """Where a loader does not pin its batches and copying them holds the host up."""
    how, copies = loading(case), _pageable_batch_copies(case)
    if how is None or how.loader.get("pin_memory") or not copies:
        return
    lost_ms = sum(wait.ms for wait in copies)
    predicted = case.predict(
        *(fix_named("pin").predict(None, case) or ()),
        words="batches are copied from pinned memory while the host goes on",
    )
    if not is_worth_fixing(case, predicted, lost_ms):
        return
    yield Finding(
        id=NO_PINNING.id,
        title="Batches are copied from memory that is not pinned",
        why=(
            f"The host waits {in_ms(lost_ms)} ms in each step for its batch to be copied, because"
            " pageable memory has to pass through a buffer of the driver."
        ),
        advice=("Pass pin_memory=True to the DataLoader and non_blocking=True to `.to(device)`."),
        share=wait_share(case, predicted, lost_ms),
        evidence=wait_evidence(copies),
        where=tuple(dict.fromkeys((*loader_places(how), *(wait.place for wait in copies)))),
        predicted=predicted,
        fix=FixRef("pin"),
        effort="one argument, and one in each `.to`",
        kind="exact",
        confidence="high" if case.model is not None else "medium",
    )


NO_PINNING = Rule(
    id="data.no_pinning",
    cause="Batches come from a loader in pageable memory, and each copy makes the host wait.",
    find=_no_pinning,
    symptoms=("transfer.blocking_copies", "transfer.not_overlapped"),
)


def _blocking_copies(case: Case) -> Iterable[Finding]:
    """Where tensors made on the host are copied as they are, or pinned ones with a wait."""
    how = loading(case)
    if how is not None and not how.loader.get("pin_memory") and _pageable_batch_copies(case):
        return
    again = {wait for wait, _ in repeated_copies(case)}
    pageable = _pageable_batch_copies(case)
    waiting = [
        w for w in _pinned_copies(case) if w not in again and not _does_not_block(case, w.place)
    ]
    some = pageable or waiting
    if not some:
        return
    lost_ms = sum(wait.ms for wait in some)
    predicted = case.predict(
        *(fix_named("pin").predict(None, case) or ()),
        words="the host goes on while tensors are copied",
    )
    if is_worth_fixing(case, predicted, lost_ms):
        yield Finding(
            id=BLOCKING_COPIES.id,
            title="The host waits for copies to the GPU",
            why=_blocking_why(lost_ms, bool(pageable)),
            advice=_blocking_advice(bool(pageable)),
            share=wait_share(case, predicted, lost_ms),
            evidence=wait_evidence(some),
            where=tuple(dict.fromkeys(wait.place for wait in some))[:6],
            predicted=predicted,
            fix=FixRef("pin") if how is not None and not pageable else None,
            effort=_blocking_effort(some, bool(pageable)),
            kind="exact",
            confidence="high" if case.model is not None else "medium",
        )


BLOCKING_COPIES = Rule(
    id="transfer.blocking_copies",
    cause="Copies to the device that the host waits for, other than those of an unpinned loader.",
    find=_blocking_copies,
    symptoms=("transfer.not_overlapped",),
)


def _blocking_why(lost_ms: float, pageable: bool) -> str:
    what = (
        "tensors in pageable memory, which pass through a buffer of the driver"
        if pageable
        else "copies that could go on by themselves: the memory is pinned, but they are waited for"
    )
    return f"The host spends {in_ms(lost_ms)} ms of each step on {what}."


def _blocking_advice(pageable: bool) -> str:
    if not pageable:
        return "Pass non_blocking=True to `.to(device)` or `.cuda()`."
    return (
        "Make the tensors on the device (`device=device`), or in pinned memory (pin_memory=True,"
        " `.pin_memory()`), and copy them with non_blocking=True."
    )


def _blocking_effort(some: list[Wait], pageable: bool) -> str:
    return "one argument" if len(some) == 1 and not pageable else "some lines"


def _copies_not_overlapped(case: Case) -> Iterable[Finding]:
    """Where copies ahead, beside compute, gain more than copies that do not wait."""
    copies = _recorded_copies(case, "HtoD")
    exposed_ms = sum(per_step(case, one["total_ns"] * (1 - one["overlapped"])) for one in copies)
    share = step_share(case, exposed_ms)
    if case.device != "cuda" or share < LEAST_GAIN or _only_repeated(case):
        return
    predicted = case.predict(
        *(fix_named("prefetch").predict(None, case) or ()),
        words=f"{in_ms(exposed_ms)} ms of copying go on while the step before computes",
    )
    first = case.predict(*(fix_named("pin").predict(None, case) or ()), words="")
    reached = first.step_ms if first is not None else case.step_ms
    if case.model is not None and (
        predicted is None or predicted.step_ms > (1 - LEAST_GAIN) * reached
    ):
        return
    total_ms = sum(per_step(case, one["total_ns"]) for one in copies)
    moved = sum(one["bytes"] or 0 for one in copies)
    rate = moved / max(1, sum(one["total_ns"] for one in copies))  # bytes a ns: GB a second
    lines = (*_pageable_batch_copies(case), *_pinned_copies(case))
    yield Finding(
        id=COPIES_NOT_OVERLAPPED.id,
        title="The GPU computes nothing while batches are copied",
        why=(
            f"Copies to the device take {in_ms(total_ms)} ms of each step, and for"
            f" {in_ms(exposed_ms)} ms of that nothing else goes on."
        ),
        advice=(
            "Copy the next batch on a stream of its own while the present one is worked on, from"
            " pinned memory; or send less: integers and bytes, converted on the device."
        ),
        share=share,
        evidence=(
            Evidence("copies to the device", total_ms, "ms a step"),
            Evidence("of it while nothing computes", exposed_ms, "ms a step"),
            Evidence("rate", rate, "GB/s"),
        ),
        where=tuple(dict.fromkeys(wait.place for wait in lines))[:6],
        predicted=predicted,
        fix=FixRef("prefetch") if loading(case) is not None else None,
        effort="some lines",
        kind="exact",
        confidence="high" if case.model is not None else "medium",
    )


COPIES_NOT_OVERLAPPED = Rule(
    id="transfer.not_overlapped",
    cause="Batches are copied to the device while it computes nothing.",
    find=_copies_not_overlapped,
)


def _only_repeated(case: Case) -> bool:
    """Whether nothing is copied but what need not be, which is another rule's."""
    again = {wait.place for wait, _ in repeated_copies(case)}
    return bool(again) and again >= {
        wait.place for wait in (*_pageable_batch_copies(case), *_pinned_copies(case))
    }


def _repeated_copies(case: Case) -> Iterable[Finding]:
    """Where a line of the loop copies what no line of the loop changes."""
    found = repeated_copies(case)
    some = [wait for wait, _ in found]
    lost_ms = sum(wait.ms for wait in some)
    if not some or step_share(case, lost_ms) < LEAST_GAIN:
        return
    predicted = _without_copies(case, lost_ms)
    if predicted is None:
        return
    names = ", ".join(dict.fromkeys(f"`{name}`" for _, name in found))
    yield Finding(
        id=REPEATED_COPIES.id,
        title="The same data is copied to the GPU in every step",
        why=(
            f"{names} {'is' if len(found) == 1 else 'are'} moved to the device anew for"
            f" {in_ms(lost_ms)} ms of each step, though nothing in the loop changes it."
        ),
        advice=(
            "Move it once, before the loop; in a module, register it as a buffer"
            " (`self.register_buffer`), which moves with the model."
        ),
        share=step_share(case, lost_ms),
        evidence=wait_evidence(some),
        where=tuple(dict.fromkeys(wait.place for wait in some))[:6],
        predicted=predicted,
        effort="one line" if len(some) == 1 else "some lines",
        kind="exact",
        confidence="medium",
    )


REPEATED_COPIES = Rule(
    id="transfer.repeated_copies",
    cause="The same data is copied to the device in every step.",
    find=_repeated_copies,
)


def _without_copies(case: Case, lost_ms: float) -> Predicted | None:
    """The step without what is lost there, as far as the replay of no copies at all goes."""
    step_ms = case.step_ms - lost_ms
    if case.model is not None:
        none = case.predict(changes.unblock_copies(), changes.scale_copies("HtoD", 0.0), words="")
        step_ms = max(step_ms, none.step_ms if none is not None else case.step_ms)
    return case.reach(step_ms, words="nothing is copied that is there already", doubt=0.5)


_KEPT_COPIES = 0.1  # of the steps: how often it would do to look at them


def _device_to_host(case: Case) -> Iterable[Finding]:
    """Where at least four tensors come back in a step."""
    some = waits_by_kind(case).get("chatter", [])
    return wait_finding(
        case,
        "chatter",
        name=DEVICE_TO_HOST.id,
        title="Many small copies go back from the GPU",
        why=(
            f"Tensors are copied to the host{how_often(some)}, each with a wait of its own:"
            f" {time_lost(some)}."
        ),
        advice=(
            "Put together what is wanted on the device (torch.stack, torch.cat) and bring it back"
            " in one copy, every ten steps where that will do."
        ),
        words="tensors come back in one step of ten, and the host goes on meanwhile",
        besides=(scale_copies("DtoH", _KEPT_COPIES),),
    )


DEVICE_TO_HOST = Rule(
    id="transfer.device_to_host",
    cause="Many tensors a step are brought back to the host, one by one.",
    find=_device_to_host,
)
