"""The data clock: each nanosecond of a fetch goes to one transform, to collate or to neither; now
and then a fetch is followed line by line, and in each line and transform the libraries' functions
that are known to read, decode or augment. No frame of the clock lies between frames of the
program, so tracebacks and warnings stay as they are.
"""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from time import perf_counter_ns, thread_time_ns
from types import CodeType, FrameType
from typing import Any

from stepscope.probe.dataclock.dataset import dataset_origin, timeable_transforms
from stepscope.probe.dataclock.points import CallPoint, CollatePoint, FetchPoint, own_call
from stepscope.probe.dataclock.source import FetchSource, SlotTable
from stepscope.probe.patches import Patches
from stepscope.record.frames import work_of_call
from stepscope.record.kinds import SampleWork
from stepscope.store.json_file import HeldFile

_SCHEDULED = Path("/proc/thread-self/schedstat")


class _CoreClock:
    """How long the calling thread has computed, or waited for a core as Linux counts it."""

    def __init__(self) -> None:
        self._of = (0, 0)  # process and thread
        self._file: HeldFile | None = None

    def read(self) -> int:
        if self._of != (of := (os.getpid(), get_ident())):
            self._open(of)
        queued = 0
        if self._file is not None:
            try:
                queued = int(os.pread(self._file.number(), 64, 0).split()[1])
            except (OSError, ValueError, IndexError):
                self._file = None
        return thread_time_ns() + queued

    def close(self) -> None:
        file, self._file, self._of = self._file, None, (0, 0)
        if file is not None:
            file.close()

    def _open(self, of: tuple[int, int]) -> None:
        self.close()
        self._of = of
        try:
            self._file = HeldFile(_SCHEDULED, os.O_RDONLY)
        except OSError:  # another system
            self._file = None


class _Stopwatch:
    """The fetch under way, if any, and the stack of slots its time goes to."""

    def __init__(self) -> None:
        self.cores = _CoreClock()
        self.reset()

    def reset(self) -> None:
        """Forget the fetch under way and all it belongs to."""
        self.sums: list[float] = []
        self.stack: list[int] | None = None
        self.slot_of: dict[int, int] = {}  # by the identity of a transform
        self.last_ns = 0
        self.thread = 0
        self.samples: int | None = None  # None until collate is reached
        self.source: FetchSource | None = None
        self.tracer: _LineTracer | None = None
        self.holder: Callable[[], object] | None = None  # returns None once the fetch is over
        self.processor_ns = 0  # of the last fetch: what it computed, or waited for a core
        self._started_ns = self._needed_ns = 0

    def busy(self) -> bool:
        """Whether a fetch is under way, in whatever thread."""
        return self.stack is not None and (self.holder is None or self.holder() is not None)

    def begin(self, source: "FetchSource", slot: int) -> list[int]:
        """A fetch begins; what is not put elsewhere goes to `slot`."""
        self.source = source
        self.slot_of = source.slot_of
        self.stack = stack = [slot]
        self.samples = None
        self.thread = get_ident()
        self._needed_ns = self.cores.read()
        self._started_ns = self.last_ns = perf_counter_ns()
        return stack

    def collate(self, slot: int, samples: int) -> None:
        """The samples are there: the rest of the fetch is collate's."""
        stack = self.stack
        if stack is not None and self.samples is None:
            now = perf_counter_ns()
            self.sums[stack[0]] += now - self.last_ns
            self.sums[slot - 1] += 1
            stack[:] = [slot]
            self.samples = samples
            self.last_ns = now

    def end(self) -> int:
        """The fetch is over; its duration in ns, 0 if none was under way."""
        stack, self.stack, self.holder = self.stack, None, None
        if stack is None:
            return 0
        now = perf_counter_ns()
        self.sums[stack[-1]] += now - self.last_ns
        elapsed = now - self._started_ns
        ours = self.thread == get_ident()  # a destructor may run in any thread
        needed = self.cores.read() - self._needed_ns if ours else elapsed
        self.processor_ns = min(max(0, needed), elapsed)
        return elapsed


_UNKNOWN = "unknown"
_known_works: dict[CodeType, SampleWork | None] = {}
"""What libraries' functions do, as far as they were met."""


class _LineTracer:
    def __init__(self, clock: "DataClock", source: "FetchSource") -> None:
        self._clock = clock
        self._watch = clock.watch
        self._source = source
        self._files = source.files
        self._transforms = source.traced_transforms

    def on_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        """A frame begins or goes on; the tracer of its lines, None if it is not followed."""
        code = frame.f_code
        file = code.co_filename
        if file not in self._files:
            work = _known_works.get(code, _UNKNOWN)
            if work is None:
                return None
            return self._work_begins(frame, work)
        try:
            stack = self._charge()
            if stack is None or not self._transforms.isdisjoint(stack):
                return None
            stack.append(self._slot(file, frame.f_lineno))
            self._watch.last_ns = perf_counter_ns()
            return self._on_line
        except Exception:
            self._clock.switch_off()
            return None

    def _work_begins(self, frame: FrameType, work: SampleWork | str) -> Any:
        """A library's function is called: of a known kind, or never seen before."""
        try:
            code = frame.f_code
            if not isinstance(work, SampleWork):
                module = str(frame.f_globals.get("__name__") or "")
                found = _known_works[code] = work_of_call(module, code.co_qualname)
                if found is None:
                    return None
                work = found
            stack = self._charge()
            if stack is None:
                return None
            if work is SampleWork.AUGMENTING and stack[-1] in self._transforms:  # as all it does
                return None
            slot = self._source.work_slot(work, stack)
            if stack[-1] == slot:
                return None
            stack.append(slot)
            frame.f_trace_lines = False
            self._watch.last_ns = perf_counter_ns()
            return self._on_line
        except Exception:
            self._clock.switch_off()
            return None

    def transform_called(self, slot: int) -> int:
        """A timed transform is called; the slot its time goes to."""
        watch = self._watch
        if watch.stack is not None and watch.thread == get_ident():
            self._source.transform_called(slot, watch.stack)
        return self._source.traced_of[slot]

    def _on_line(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            stack = self._charge()
            if stack is None:
                return None
            if event == "line":
                stack[-1] = slot = self._slot(frame.f_code.co_filename, frame.f_lineno)
                self._watch.sums[slot - 1] += 1
            elif event == "return":
                if len(stack) > 1:
                    stack.pop()
                frame.f_trace = None
            self._watch.last_ns = perf_counter_ns()
            return self._on_line
        except Exception:
            self._clock.switch_off()
            return None

    def _slot(self, file: str, line: int) -> int:
        return self._source.line_slot(file, line, self._watch.samples is not None)

    def _charge(self) -> list[int] | None:
        watch = self._watch
        stack = watch.stack
        if stack is not None and watch.tracer is self:
            watch.sums[stack[-1]] += perf_counter_ns() - watch.last_ns
            return stack
        return None


_ALL_OF_FIRST = 64  # fetches timed one by one
_SHORT_NS = 1_000_000  # from then on, of fetches shorter than this,
_SKIPPED = 7  # that many follow each timed one
_FOR_EVER = 1 << 62
_MARK = "_stepscope_source"  # on torch's private fetcher objects only
_installed: "DataClock | None" = None


class DataClock:
    """Times the fetches of every DataLoader in this process and in the workers it starts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self.patches = Patches()
        self._classes: set[type] = set()
        self.watch = _Stopwatch()
        self.original_loop: Any = None
        self._forget()

    def _forget(self) -> None:
        """Start over: nothing counted so far belongs to this process."""
        self.watch.reset()
        self._slots: SlotTable | None = None
        self._sources: dict[Any, FetchSource] = {}
        self.alive = True
        self.skip = 0  # fetches still to be left alone
        self._timed = 0
        self.pending: BaseException | None = None

    def install(self) -> None:
        """Begin to observe; only after torch has been imported."""
        global _installed
        try:
            from torch.utils.data._utils import fetch, worker

            _watch_forks()
            for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
                self.patches.set(fetcher, "fetch", FetchPoint(self, vars(fetcher)["fetch"]))
            self.patches.set(fetch._BaseDatasetFetcher, "collate_fn", CollatePoint(self))
            self.original_loop = worker._worker_loop
            loop = functools.partial(worker_loop, str(self._folder))
            self.patches.set(worker, "_worker_loop", loop)
            _installed = self
        except Exception:
            self.patches.restore()
            self.switch_off()

    def uninstall(self) -> None:
        """Put everything back; what was counted stays in the folder."""
        global _installed
        _installed = None
        self.switch_off()
        self.patches.restore()
        self._classes.clear()
        if self._slots is not None:
            self._slots.close()
            self._slots = None
        self.watch.cores.close()

    def switch_off(self) -> None:
        """Stop counting; the program goes on."""
        self.alive = False
        self._stop_tracing()
        self.watch.stack = None

    def pause(self, on: bool) -> None:
        """Fetches to come are left alone, or no longer."""
        self.skip = _FOR_EVER if on else 0

    def begin(self, fetcher: Any) -> "list[int] | None":
        """A fetch begins; returns its stack of slots, None if it is not to be timed."""
        if self.pending is not None:  # what a destructor could not raise
            problem, self.pending = self.pending, None
            raise problem
        watch = self.watch
        if not self.alive or watch.busy():
            return None
        try:
            if watch.tracer is not None:
                self._stop_tracing()
            source = fetcher.__dict__.get(_MARK)
            if source is None or source.slots is not self._slots:
                source = self._source(fetcher)
            if source.untraced_left > 0 or sys.gettrace() is not None:
                source.untraced_left -= 1
                return watch.begin(source, source.rest)
            source.place_transforms()
            watch.tracer = _LineTracer(self, source)
            stack = watch.begin(source, source.traced_rest)
            sys.settrace(watch.tracer.on_call)
            return stack
        except Exception:
            self.switch_off()
            return None

    def collate(self, fetcher: Any, data: Any, index: Any) -> None:
        """The fetch has its samples and now collates them."""
        watch = self.watch
        source = watch.source
        try:
            if source is None or watch.stack is None or watch.thread != get_ident():
                return
            if fetcher.__dict__.get(_MARK) is source:
                sized = data if fetcher.auto_collation and isinstance(data, list) else index
                samples = len(sized) if isinstance(sized, (list, tuple)) else 1
                slot = source.collate if watch.tracer is None else source.traced_collate
                watch.collate(slot, samples)
        except Exception:
            self.switch_off()

    def end(self, stack: list[int]) -> None:
        """The fetch whose stack this is has returned or raised."""
        watch = self.watch
        if watch.stack is not stack:
            return
        try:
            tracer = watch.tracer
            if tracer is not None:
                self._stop_tracing()
            elapsed_ns = watch.end()
            if (source := watch.source) is not None and self.alive:
                source.fetched(elapsed_ns, watch.samples, tracer is not None, watch.processor_ns)
            self._timed += 1
            if elapsed_ns < _SHORT_NS and self._timed > _ALL_OF_FIRST:
                self.skip = _SKIPPED
        except BaseException as problem:
            self.failed_at_end(problem)

    def failed_at_end(self, problem: BaseException) -> None:
        """A destructor cannot raise: Ctrl-C that lands in ours is raised at the next point."""
        if isinstance(problem, Exception):
            self.switch_off()
        else:
            self.pending = problem

    def _source(self, fetcher: Any) -> FetchSource:
        if self._slots is None:
            self._slots = SlotTable(self._folder)
            self.watch.sums = self._slots.sums
        found = dataset_origin(fetcher)
        transforms = timeable_transforms(fetcher)
        identity = (found, *(type(t).__qualname__ for t in transforms))
        source = self._sources.get(identity)
        if source is None:
            source = self._sources[identity] = FetchSource(self._slots, found, transforms, fetcher)
        source.know(transforms, fetcher)
        for cls in {type(t) for t in transforms} - self._classes:
            self.patches.set(cls, "__call__", CallPoint(self, cls, own_call(cls)))
            self._classes.add(cls)
        vars(fetcher)[_MARK] = source
        return source

    def _stop_tracing(self) -> None:
        if self.watch.tracer is not None:
            self.watch.tracer = None
            sys.settrace(None)


def worker_loop(folder: str, *args: Any) -> None:
    """torch's worker loop with a clock of its own; forked workers have inherited one."""
    from torch.utils.data._utils import worker

    loop = worker._worker_loop
    if _installed is not None and getattr(loop, "func", None) is worker_loop:
        loop = _installed.original_loop
    else:
        DataClock(Path(folder)).install()
    loop(*args)


@functools.cache
def _watch_forks() -> None:
    def forked() -> None:
        if _installed is not None:
            _installed._stop_tracing()
            _installed._forget()

    os.register_at_fork(after_in_child=forked)
