"""Copies to the device that the host waits for, other than those of an unpinned loader."""

from collections.abc import Iterable

from stepscope.analyze.whatif.gains import change_for
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules._copies import (
    does_not_block,
    of_batches,
    pinned,
    repeated,
)
from stepscope.diagnose.rules._loading import loading
from stepscope.diagnose.rules._waitgain import evidence, matters, share
from stepscope.diagnose.rules._waits import Wait
from stepscope.record.finding import Finding, FixRef


def _blocking_copies(case: Case) -> Iterable[Finding]:
    """Where tensors made on the host are copied as they are, or pinned ones with a wait."""
    how = loading(case)
    if how is not None and not how.loader.get("pin_memory") and of_batches(case):
        return
    again = {wait for wait, _ in repeated(case)}
    pageable = of_batches(case)
    waiting = [w for w in pinned(case) if w not in again and not does_not_block(case, w.place)]
    some = pageable or waiting
    if not some:
        return
    lost_ms = sum(wait.ms for wait in some)
    predicted = case.predict(
        *(change_for("pin", None, case) or ()),
        words="the host goes on while tensors are copied",
    )
    if matters(case, predicted, lost_ms):
        yield Finding(
            id=BLOCKING_COPIES.id,
            title="The host waits for copies to the GPU",
            why=_why(lost_ms, bool(pageable)),
            advice=_advice(bool(pageable)),
            share=share(case, predicted, lost_ms),
            evidence=evidence(some),
            where=tuple(dict.fromkeys(wait.place for wait in some))[:6],
            predicted=predicted,
            fix=FixRef("pin") if how is not None and not pageable else None,
            effort=_effort(some, bool(pageable)),
            kind="exact",
            confidence="high" if case.model is not None else "medium",
        )


BLOCKING_COPIES = Rule(
    id="transfer.blocking_copies",
    cause="Copies to the device that the host waits for, other than those of an unpinned loader.",
    find=_blocking_copies,
    symptoms=("transfer.not_overlapped",),
)


def _why(lost_ms: float, pageable: bool) -> str:
    what = (
        "tensors in pageable memory, which pass through a buffer of the driver"
        if pageable
        else "copies that could go on by themselves: the memory is pinned, but they are waited for"
    )
    return f"The host spends {in_ms(lost_ms)} ms of each step on {what}."


def _advice(pageable: bool) -> str:
    if not pageable:
        return "Pass non_blocking=True to `.to(device)` or `.cuda()`."
    return (
        "Make the tensors on the device (`device=device`), or in pinned memory (pin_memory=True,"
        " `.pin_memory()`), and copy them with non_blocking=True."
    )


def _effort(some: list[Wait], pageable: bool) -> str:
    return "one argument" if len(some) == 1 and not pageable else "some lines"
