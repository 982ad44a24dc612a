"""The batch size of a function, `stepscope.find_batch_size`: called in forked processes if
possible, else in this one."""

import gc
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from math import ceil
from typing import Any, Final

import msgspec

from stepscope.batch.document import Batch, search_result
from stepscope.batch.search import BatchSearch, SearchBounds
from stepscope.batch.sizes import SizeMeasurement
from stepscope.hardware.processor import free_bytes
from stepscope.record.errors import UsageError
from stepscope.record.problems import is_out_of_memory
from stepscope.record.trial import TrialReason, TrialStatus
from stepscope.workloads.measure.program import peak_memory, reset_peak_memory

_Step = Callable[[int], Any]

_BLOCKS: Final = 4
_MOST_CALLS: Final = 1000


def _call_with(
    fn: _Step, batch: int, seconds: float, device: str | None = None
) -> tuple[SizeMeasurement, str]:
    """Two warm-up calls, then four blocks of calls, each of at least a quarter of `seconds`. Also
    returns the device: `device`, else cuda if the calls allocated there, else cpu. Running out of
    memory is a result; other exceptions propagate."""
    import torch

    begun = time.perf_counter()
    cuda = torch.cuda  # not touched before the function has used it
    gpu = device if device is not None and device.startswith("cuda") else None
    before = 0
    if cuda.is_initialized():
        cuda.reset_peak_memory_stats(gpu)
        before = cuda.memory_allocated(gpu)
    reset_peak_memory()

    def block(calls: int) -> float:
        """Milliseconds of a call."""
        begun = time.perf_counter()
        for _ in range(calls):
            fn(batch)
        if cuda.is_initialized():
            cuda.synchronize(gpu)  # once per block: calls within one may overlap
        return (time.perf_counter() - begun) * 1e3 / calls

    times, calls, status, reason, detail = list[float](), 0, TrialStatus.OK, None, None
    try:
        block(1)
        second = block(1)
        each = min(_MOST_CALLS, max(1, ceil(seconds * 1e3 / _BLOCKS / max(second, 1e-3))))
        times, calls = [block(each) for _ in range(_BLOCKS)], 2 + _BLOCKS * each
    except Exception as error:
        if not is_out_of_memory(type(error).__name__, str(error)):
            raise
        status, reason = TrialStatus.OUT_OF_MEMORY, TrialReason.ALLOCATION_FAILED
        detail = str(error).strip().split("\n")[0] or None
    peak = float(cuda.max_memory_allocated(gpu)) if cuda.is_initialized() else None
    used = device or ("cuda" if (peak or 0.0) > before else "cpu")
    memory = peak if used.startswith("cuda") else float(peak_memory(torch.device("cpu"))[0])
    gc.collect()
    if cuda.is_initialized():
        cuda.empty_cache()  # freed for the next size
    spent = time.perf_counter() - begun
    got = SizeMeasurement(
        batch, status, reason, detail, tuple(times), float(batch), memory, None, calls, spent
    )
    return got, used


_CANARY_S: Final = 5.0
_LARGE: Final = 1 << 20  # elements: enough for PyTorch to compute with several threads


class ChildDied(Exception):  # noqa: N818
    """The forked process ended without an answer; `number` is the signal that ended it, or None."""

    def __init__(self, number: int | None) -> None:
        super().__init__(f"ended by signal {number}" if number else "ended without an answer")
        self.number = number


def _can_fork() -> bool:
    """Whether a forked child can compute with PyTorch. It cannot if this process has used CUDA, or
    has computed with several threads: GNU OpenMP then hangs in a child. A child with a few seconds
    to live tries it."""
    if not hasattr(os, "fork") or sys.platform != "linux":
        return False
    torch = sys.modules.get("torch")
    if torch is None:
        return True
    if torch.cuda.is_initialized():
        return False

    def canary() -> bool:
        numbers = torch.ones(_LARGE, requires_grad=True)
        numbers.exp().sum().backward()
        return True

    try:
        return bool(in_fork(canary, _CANARY_S))
    except (ChildDied, TimeoutError):
        return False


def in_fork(work: Callable[[], Any], timeout_s: float | None = None) -> Any:
    """What `work` returns in a forked child, sent as JSON. Raises ChildDied or TimeoutError."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    with warnings.catch_warnings(action="ignore"):  # Python warns that threads are not forked
        pid = os.fork()
    if pid == 0:
        os.close(reading)
        _answer(work, writing)
    os.close(writing)
    ended = False
    try:
        with os.fdopen(reading) as pipe:
            ready, _, _ = select.select([pipe], [], [], timeout_s)
            if not ready:
                raise TimeoutError
            text = pipe.read()
        _, status = os.waitpid(pid, 0)
        ended = True
    finally:
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    if not text:
        raise ChildDied(os.WTERMSIG(status) if os.WIFSIGNALED(status) else None)
    return json.loads(text)


def _answer(work: Callable[[], Any], writing: int) -> None:
    """The child's whole life; never returns."""
    code = 1
    try:
        with os.fdopen(writing, "w") as pipe:
            pipe.write(json.dumps(work()))
        code = 0
    except BaseException:
        pass
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def search_function(
    fn: _Step,
    start: int,
    largest: int | None,
    headroom: float,
    within: float,
    device: str | None,
    seconds: float,
) -> Batch:
    """The result for a function. Raises UsageError."""
    _check(fn, start, largest, headroom, within)
    calls = _Calls(fn, seconds, device, _can_fork())
    first = calls.measure(start, None)
    on = calls.device
    gpu, free = on.startswith("cuda"), free_bytes()

    def gpu_memory() -> float:
        import torch

        return float(torch.cuda.get_device_properties(on).total_memory)

    if gpu:  # asked in a child, so that this process stays without CUDA
        memory: float | None = in_fork(gpu_memory) if calls.forked else gpu_memory()
    else:  # what the process holds, plus what is free
        held = first.memory_bytes
        memory = None if free is None or held is None else free + held
    bounds = SearchBounds(
        start=start,
        smallest=None if first.ok else 1,
        largest=largest,
        memory_bytes=memory,
        fills=gpu,
        headroom=headroom,
        within=within,
        longest_s=60.0,
    )
    search = BatchSearch(calls.measure, bounds, first)
    search.run()
    return Batch(device=on, forked=calls.forked, **search_result(search, bounds, None))


class _Calls:
    """Measures a size by calling the function, in a forked process if possible."""

    def __init__(self, fn: _Step, seconds: float, device: str | None, forked: bool) -> None:
        self.device = device or "cpu"
        self.forked = forked
        self._fn = fn
        self._seconds = seconds
        self._asked = device
        self._ran = False

    def measure(self, batch: int, step_ms: float | None) -> SizeMeasurement:
        """A failure of the function is a result once some size has worked."""
        got = self._in_fork(batch) if self.forked else self._here(batch)
        self._ran |= got.ok
        return got

    def _here(self, batch: int) -> SizeMeasurement:
        try:
            got, self.device = _call_with(self._fn, batch, self._seconds, self._asked)
        except Exception as error:
            if not self._ran:
                raise
            return _failed(batch, _line(error))
        return got

    def _in_fork(self, batch: int) -> SizeMeasurement:
        def work() -> dict[str, Any]:
            try:
                got, device = _call_with(self._fn, batch, self._seconds, self._asked)
            except Exception as error:
                return {"error": _line(error)}
            return {"got": msgspec.to_builtins(got), "device": device}

        try:
            told = in_fork(work)
        except ChildDied as problem:
            if problem.number == signal.SIGKILL:  # as the kernel does when memory runs out
                full = TrialStatus.OUT_OF_MEMORY
                return SizeMeasurement(batch, full, TrialReason.HOST_MEMORY_FULL)
            told = {"error": f"its process {problem}"}
        if "error" in told:
            if not self._ran:
                raise UsageError(f"the function failed at batch {batch}: {told['error']}")
            return _failed(batch, told["error"])
        self.device = told["device"]
        return msgspec.convert(told["got"], SizeMeasurement)


def _failed(batch: int, words: str) -> SizeMeasurement:
    return SizeMeasurement(batch, TrialStatus.FAILED, TrialReason.PROGRAM_FAILED, words)


def _check(fn: _Step, start: int, largest: int | None, headroom: float, within: float) -> None:
    if not callable(fn):
        raise UsageError("find_batch_size needs a function that takes a batch size")
    if start < 1 or (largest is not None and largest < start):
        raise UsageError(f"start={start}, max={largest}: use 1 ≤ start ≤ max")
    for name, share in (("headroom", headroom), ("within", within)):
        if not 0 <= share < 1:
            raise UsageError(f"{name}={share}: use a share from 0 to below 1")


def _line(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
