"""The batch size of a function: `stepscope.find_batch_size`."""

from dataclasses import asdict
from typing import Any, Final

from stepscope.record.errors import UsageError
from stepscope.tune.batch_bounds import Bounds
from stepscope.tune.batch_call import Step, call_with
from stepscope.tune.batch_document import SCHEMA, answer
from stepscope.tune.batch_fork import Died, can_fork, in_fork
from stepscope.tune.batch_measured import OUT_OF_MEMORY, Measured
from stepscope.tune.batch_search import Search
from stepscope.tune.batch_seen import available
from stepscope.tune.batch_words import verdict_words

_KILLED: Final = 9
_LONGEST_S: Final = 60.0


def search_function(
    fn: Step,
    start: int,
    largest: int | None,
    headroom: float,
    within: float,
    device: str | None,
    seconds: float,
) -> dict[str, Any]:
    """What `answer` gives, with `device`, `forked` and `verdict`. Raises UsageError."""
    _check(fn, start, largest, headroom, within)
    calls = _Calls(fn, seconds, device, can_fork())
    first = calls.measure(start, None)
    on = calls.device
    gpu = on.startswith("cuda")
    bounds = Bounds(
        start=start,
        smallest=None if first.ok else 1,
        largest=largest,
        memory_bytes=_gpu_memory(calls, on) if gpu else _host_memory(first),
        fills=gpu,
        headroom=headroom,
        within=within,
        longest_s=_LONGEST_S,
    )
    search = Search(calls.measure, bounds, first)
    search.run()
    found = answer(search, bounds, None)
    where = {"device": on, "forked": calls.forked}
    return {"schema": SCHEMA, **where, **found, "verdict": verdict_words(found)}


class _Calls:
    """Measures a size by calling the function, in a forked process where that works."""

    def __init__(self, fn: Step, seconds: float, device: str | None, forked: bool) -> None:
        self.device = device or "cpu"
        self.forked = forked
        self._fn = fn
        self._seconds = seconds
        self._asked = device
        self._ran = False

    def measure(self, batch: int, step_ms: float | None) -> Measured:
        got = self._in_fork(batch) if self.forked else self._here(batch)
        self._ran |= got.ok
        return got

    def _here(self, batch: int) -> Measured:
        try:
            got, self.device = call_with(self._fn, batch, self._seconds, self._asked)
        except Exception as error:
            if not self._ran:
                raise
            return Measured(batch, "failed", _line(error))
        return got

    def _in_fork(self, batch: int) -> Measured:
        def work() -> dict[str, Any]:
            try:
                got, device = call_with(self._fn, batch, self._seconds, self._asked)
            except Exception as error:
                return {"why": _line(error)}
            return {"got": asdict(got), "device": device}

        try:
            told = in_fork(work)
        except Died as problem:
            if problem.number == _KILLED:  # as the kernel does when memory ends
                return Measured(batch, OUT_OF_MEMORY, "its process was killed")
            told = {"why": f"its process {problem}"}
        if "why" in told:
            if not self._ran:
                raise UsageError(f"the function failed at batch {batch}: {told['why']}")
            return Measured(batch, "failed", told["why"])
        self.device = told["device"]
        return Measured(**{**told["got"], "step_ms": tuple(told["got"]["step_ms"])})


def _check(fn: Step, start: int, largest: int | None, headroom: float, within: float) -> None:
    if not callable(fn):
        raise UsageError("find_batch_size wants a function that takes a batch size")
    if start < 1 or (largest is not None and largest < start):
        raise UsageError(f"start={start}, max={largest}: use 1 ≤ start ≤ max")
    for name, share in (("headroom", headroom), ("within", within)):
        if not 0 <= share < 1:
            raise UsageError(f"{name}={share}: use a share from 0 to below 1")


def _host_memory(first: Measured) -> float | None:
    """What the process holds, and what is free besides."""
    free = available()
    return None if free is None or first.memory_bytes is None else free + first.memory_bytes


def _gpu_memory(calls: _Calls, device: str) -> float:
    """Bytes of the GPU; asked in a child where this process is to stay without CUDA."""

    def ask() -> float:
        import torch

        return float(torch.cuda.get_device_properties(device).total_memory)

    return float(in_fork(ask)) if calls.forked else ask()


def _line(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
