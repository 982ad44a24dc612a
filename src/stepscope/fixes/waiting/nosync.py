"""Drop `torch.cuda.synchronize` in the training loop, unless something in the program may depend on
it."""

import linecache
import re
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ObservedProgram, unsuitable
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit
from stepscope.fixes.edit.statements import without_synchronize
from stepscope.fixes.inspect.user_code import calling_frame, user_calling_frame
from stepscope.fixes.lazy import changes, torch, unseen
from stepscope.record.fix import Applied, NotApplied, Reason, Switch, Target
from stepscope.record.trial import Rejection

_OTHER_CUDA = ("cupy", "numba.cuda", "pycuda", "jax", "tensorflow")
"""Libraries that launch device work without torch, on their own streams."""


def _hazard(name: str, words: str) -> Reason:
    return Reason(name, f"{words} may depend on torch.cuda.synchronize, so it stays")


SYNCHRONIZE = Target(
    "synchronize",
    "torch.cuda.synchronize{at}",
    "; the program's own timings there no longer wait for the device",
)
NO_SYNCHRONIZE = Reason("no_synchronize", "no explicit synchronization")
COPY_TO_HOST = _hazard("copy_to_host", "a non-blocking copy to the host{at}")
PINNED_REFILLED = _hazard("pinned_refilled", "pinned memory filled again for each copy{at}")
PINNED_IN_NUMPY = _hazard("pinned_in_numpy", "pinned memory shared with numpy{at}")
STREAM_MADE = _hazard("stream_made", "the stream made{at}")
STREAM_USED = _hazard("stream_used", "the stream used{at}")
DEVICE_ASKED = _hazard("device_asked", "asking whether the device is done{at}")
OTHER_CUDA_LIBRARY = _hazard("other_cuda_library", "{code}, which uses the device on its own,")


def _watch_hazards(context: FixContext, found: Callable[[Reason], None]) -> None:
    """Call `found` for everything that makes a synchronisation matter, except stepscope's own
    actions and streams inside libraries."""
    seams = context.watching
    fills: dict[int, int] = {}  # address of pinned memory copied from → how often it was written

    def check(source: Any, target: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """A copy began. Pinned memory must not be refilled while it runs."""
        flags = [arg for arg in args if type(arg) is bool]  # tensors, say, may equal True too
        if not kwargs.get("non_blocking") and True not in flags:
            return
        with unseen.unseen_by_program():
            if not target.is_cuda:
                if source.is_cuda and calling_frame(__file__) is not None:
                    found(COPY_TO_HOST)
            elif not source.is_cuda and source.is_pinned():
                address, version = source.data_ptr(), source._version
                if version > fills.setdefault(address, version):
                    found(PINNED_REFILLED)

    def moved(call: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(tensor, *args, **kwargs)
        check(tensor, result, args, kwargs)
        return result

    def copied(call: Any, target: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(target, source, *args, **kwargs)
        check(source, target, args, kwargs)
        return result

    def used_by_program(reason: Reason) -> Any:
        def used(call: Any, *args: Any, **kwargs: Any) -> Any:
            if user_calling_frame(__file__) is not None:
                found(reason)
            return call(*args, **kwargs)

        return used

    def viewed(call: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if user_calling_frame(__file__) is not None:
            with unseen.unseen_by_program():
                if not tensor.is_cuda and tensor.is_pinned():
                    found(PINNED_IN_NUMPY)
        return call(tensor, *args, **kwargs)

    seams.moved(moved)
    seams.around(torch.Tensor, "copy_", copied)
    seams.around(torch.Tensor, "numpy", viewed)
    seams.around(torch.cuda.Stream, "__new__", used_by_program(STREAM_MADE))
    seams.around(torch.cuda, "stream", used_by_program(STREAM_USED))
    for owner in (torch.cuda.Stream, torch.cuda.Event):
        seams.around(owner, "query", used_by_program(DEVICE_ASKED))


_WATCHED_STEPS = 3
"""First steps in which nothing is dropped: they show what the loop does in every step."""
_CLOCK = re.compile(r"\b(perf_counter|monotonic|process_time|time\.time|time\(\)|timeit)")


class NoSync(Fix):
    """The host keeps preparing work while the device computes."""

    name = "nosync"
    group = "waiting"
    title = "drop torch.cuda.synchronize in the training loop"
    kind = FixKind.EXACT
    effort = "one line removed"
    needs = "cuda"
    switch = Switch.AT_STEP
    missing = "the program's own loop never calls torch.cuda.synchronize"
    rewrite = staticmethod(without_synchronize)

    def applies(self, program: ObservedProgram) -> Rejection | None:
        return None if program.waits_for("synchronize") else unsuitable(NO_SYNCHRONIZE)

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        return [changes.drop_waits("synchronize")] if known.device == "cuda" else None

    def check(self, live: LiveProgram) -> NotApplied | None:
        other = _other_library()
        return None if other is None else NotApplied(OTHER_CUDA_LIBRARY, code=other)

    def install(self, value: Any, context: FixContext) -> None:
        dropping = _Dropping(context)
        context.seams.synchronised(dropping.synchronised)
        context.watching.around(torch.cuda.Event, "elapsed_time", dropping.elapsed)
        _watch_hazards(context, dropping.found)

    def edit(self, value: Any, line: str) -> SourceEdit:
        return SourceEdit("delete torch.cuda.synchronize() from the loop", "")


class _Dropping:
    """Drops synchronisations until one is found to matter."""

    def __init__(self, context: FixContext) -> None:
        self._context = context
        self._needed = False
        self._dropped = False
        self._said: set[tuple[CodeType, int]] = set()
        self._synchronize = torch.cuda.synchronize  # the original, before it is watched

    def synchronised(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        if self._needed or self._context.seams.core.steps < _WATCHED_STEPS:
            return call(*args, **kwargs)
        frame = user_calling_frame(__file__)
        if frame is None:
            return call(*args, **kwargs)
        other = _other_library()
        if other is not None:
            self.found(OTHER_CUDA_LIBRARY, other)
            return call(*args, **kwargs)
        self._dropped = True
        site = (frame.f_code, frame.f_lineno)
        if site not in self._said:
            self._said.add(site)
            timed = _times_itself(frame.f_code.co_filename, frame.f_lineno)
            record = Applied(SYNCHRONIZE, place=self._context.place(), remark=timed)
            self._context.applied(record)
        return None

    def elapsed(self, call: Any, start: Any, end: Any) -> Any:
        """Makes elapsed times available once both events are done."""
        if self._dropped:
            start.synchronize()
            end.synchronize()
        return call(start, end)

    def found(self, reason: Reason, library: str | None = None) -> None:
        """Stop dropping, and synchronise once to make up for it."""
        if self._needed:
            return
        self._needed = True
        place = None if library else self._context.place()
        self._context.not_applied(NotApplied(reason, place=place, code=library))
        if self._dropped:
            self._synchronize()


def _other_library() -> str | None:
    return next((name for name in _OTHER_CUDA if name in sys.modules), None)


def _times_itself(file: str, line: int) -> bool:
    """Whether the program reads a clock right next to a line."""
    near = (linecache.getline(file, number) for number in range(line - 2, line + 3))
    return any(_CLOCK.search(text) for text in near)


FIX = NoSync()
