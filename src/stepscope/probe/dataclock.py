"""The data clock: what the time of a DataLoader's fetches is made of.

It runs where batches are put together: in the program's process, and in its loader workers
however they are started. Each nanosecond of a fetch goes to one transform, to collate, or to
neither; of short ones, one in eight is timed; now and then one is followed line by line. No frame
of the clock lies between frames of the program, so tracebacks, warnings and batches are what they
would be without it.
"""

import functools
import os
import sys
from pathlib import Path
from threading import get_ident
from typing import Any

from stepscope.probe.dataclock_find import find, transforms_of
from stepscope.probe.dataclock_lines import LineTracer
from stepscope.probe.dataclock_points import CallPoint, CollatePoint, FetchPoint, original_call
from stepscope.probe.dataclock_slots import Slots
from stepscope.probe.dataclock_source import Source
from stepscope.probe.dataclock_watch import Watch
from stepscope.probe.patches import Patches

_ALL_OF_FIRST = 64  # fetches timed one by one
_SHORT_NS = 1_000_000  # from then on, of fetches shorter than this,
_SKIPPED = 7  # that many follow each timed one
_MARK = "_stepscope_source"  # on torch's private fetcher objects only
_installed: "DataClock | None" = None


class DataClock:
    """Times the fetches of every DataLoader in this process and in the workers it starts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._patches = Patches()
        self._classes: set[type] = set()
        self.watch = Watch()
        self.original_loop: Any = None
        self._forget()

    def _forget(self) -> None:
        """Start anew: nothing counted so far belongs to this process."""
        self.watch.reset()
        self._slots: Slots | None = None
        self._sources: dict[Any, Source] = {}
        self.alive = True
        self.skip = 0  # fetches still to be left alone
        self._timed = 0
        self.pending: BaseException | None = None

    def install(self) -> None:
        """Begin to observe; only after torch has been imported."""
        global _installed
        try:
            self._install()
            _installed = self
        except Exception:
            self._patches.restore()
            self.switch_off()

    def _install(self) -> None:
        from torch.utils.data._utils import fetch, worker

        _watch_forks()
        for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            self._patches.set(fetcher, "fetch", FetchPoint(self, vars(fetcher)["fetch"]))
        self._patches.set(fetch._BaseDatasetFetcher, "collate_fn", CollatePoint(self))
        self.original_loop = worker._worker_loop
        loop = functools.partial(worker_loop, str(self._folder))
        self._patches.set(worker, "_worker_loop", loop)

    def uninstall(self) -> None:
        """Put everything back; what was counted stays in the folder."""
        global _installed
        _installed = None
        self.switch_off()
        self._patches.restore()
        self._classes.clear()
        if self._slots is not None:
            self._slots.close()
            self._slots = None

    def switch_off(self) -> None:
        """Count nothing more; the program goes on by itself."""
        self.alive = False
        self._stop_tracing()
        self.watch.stack = None

    def begin(self, fetcher: Any) -> "list[int] | None":
        """A fetch begins; returns its stack of slots, None if it is not to be timed."""
        if self.pending is not None:
            self.raise_pending()
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
            watch.tracer = LineTracer(self, source)
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
            if watch.source is not None and self.alive:
                source, worked_ns = watch.source, watch.processor_ns
                source.fetched(elapsed_ns, watch.samples, tracer is not None, worked_ns)
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

    def raise_pending(self) -> None:
        """Raise what a destructor could not."""
        problem, self.pending = self.pending, None
        if problem is not None:
            raise problem

    def _source(self, fetcher: Any) -> Source:
        if self._slots is None:
            self._slots = Slots(self._folder)
            self.watch.sums = self._slots.sums
        found = find(fetcher)
        transforms = transforms_of(fetcher)
        identity = (found, *(type(t).__qualname__ for t in transforms))
        source = self._sources.get(identity)
        if source is None:
            source = self._sources[identity] = Source(self._slots, found, transforms, fetcher)
        source.know(transforms, fetcher)
        for cls in {type(t) for t in transforms} - self._classes:
            self._patches.set(cls, "__call__", CallPoint(self, cls, original_call(cls)))
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
    os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    if _installed is not None:
        _installed._stop_tracing()
        _installed._forget()
