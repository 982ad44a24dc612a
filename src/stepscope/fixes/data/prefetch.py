"""Copy the next batch to the GPU, on a stream of its own, while the current one computes."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ProgramPart
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit
from stepscope.fixes.data.pin import (
    PINNING_FAILURES,
    HandedOut,
    pinning_changes,
    pinning_refused,
    request_pinning,
)
from stepscope.fixes.inspect.dataset_traits import dataset_traits
from stepscope.fixes.inspect.loaders import (
    OTHER_SHUFFLES,
    LoaderRecords,
    has_own_generator,
    sampler_draw_change,
    shut_down_at_exit,
)
from stepscope.fixes.inspect.state_watch import (
    BetweenBatches,
    may_change,
    sampler_watch,
)
from stepscope.fixes.inspect.tensors import (
    Move,
    NestedPath,
    cpu_tensors,
    requested_move,
    storage_key,
    tensor_version,
)
from stepscope.fixes.lazy import changes, torch
from stepscope.record.fix import (
    LOADER,
    Applied,
    NotApplied,
    Reason,
    SourceLine,
    Trait,
    Variation,
)

_NOTHING: Final = object()
BATCHES_SHARE_MEMORY = Reason(
    "batches_share_memory", "batches of {subject} share memory: none can be fetched ahead"
)
COPY_FAILED = Reason("copy_failed", "the next batch of {subject} could not be copied: {error}")
ITERABLE_IN_PROCESS = Reason(
    "iterable_in_process",
    "{subject} reads an IterableDataset in the program's process, where a sample fetched ahead is"
    " lost when the loop leaves an epoch early; give it workers",
)


class BatchAhead:
    """An iterator's next batch, fetched ahead."""

    def __init__(self) -> None:
        self._batch: Any = _NOTHING
        self._error: Exception | None = None

    def next(self, fetch: Callable[[], Any], prepare: Callable[[Any], None]) -> Any:
        batch, error = self._batch, self._error
        self._batch, self._error = _NOTHING, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, which would keep the iterator alive
        if batch is _NOTHING:
            batch = fetch()
            prepare(batch)
        try:
            self._batch = fetch()
        except StopIteration as end:
            self._error = end.with_traceback(None)  # which refers to this very object
        except Exception as problem:
            self._error = problem
        else:
            prepare(self._batch)
        return batch


_REMEMBERED: Final = 4  # batches; a framework may fetch one or two before it moves the first


@dataclass(slots=True)
class _MovePlan:
    """What is known about one loader's batches."""

    moves: dict[NestedPath, Move] = field(default_factory=dict)
    """The tensors the program moves, by their path in a batch."""
    first: Any = None
    """The first batch, until the second has come."""
    apart: bool = False
    """Whether two batches had separate memory: only then can one be fetched ahead."""
    over: bool = False
    """Whether prefetching was given up."""

    def compare(self, batch: Any) -> bool:
        """Examine one of the first two batches; False if they share memory."""
        if self.first is None:
            self.first = batch
            return True
        before = {storage_key(tensor) for _, tensor in cpu_tensors(self.first)}
        self.apart = all(storage_key(tensor) not in before for _, tensor in cpu_tensors(batch))
        self.first = None
        return self.apart


@dataclass(slots=True)
class BatchTensor:
    """One tensor of the program's current or next batch."""

    tensor: Any
    """A weak reference."""
    plan: _MovePlan
    path: NestedPath
    move: Move | None = None
    copied: Any = None
    ready: Any = None
    version: int | None = None


class _EarlyCopies:
    """Watches moves of loader tensors; answers those it has already made."""

    def __init__(self, side: Any) -> None:
        self._side = side
        self._entries: dict[int, BatchTensor] = {}
        self._batches: deque[list[tuple[int, BatchTensor]]] = deque()
        self.answered = 0

    def know(self, batch: Any, plan: _MovePlan) -> None:
        """A batch was fetched: copy the tensors that the program moves of such batches."""
        added = []
        for path, tensor in cpu_tensors(batch):
            entry = BatchTensor(ref(tensor), plan, path)
            move = plan.moves.get(path)
            if move is not None and not tensor.requires_grad and not tensor.is_inference():
                entry.version = tensor_version(tensor)
                entry.copied, entry.ready = self._side.copy(tensor, move)
                entry.move = move
            self._entries[id(tensor)] = entry
            added.append((id(tensor), entry))
        self._batches.append(added)
        if len(self._batches) <= _REMEMBERED:
            return
        for key, entry in self._batches.popleft():  # a batch that is over
            if self._entries.get(key) is entry:  # otherwise a later tensor has reused the id
                del self._entries[key]
            if entry.copied is not None:  # nobody used it: it is not copied again
                entry.copied = None
                entry.plan.moves.pop(entry.path, None)

    def move(self, name: str, call: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Around `.to` or `.cuda` of any tensor; `name` is which."""
        entry = self._entries.get(id(tensor))
        if entry is None or entry.tensor() is not tensor:
            return call(tensor, *args, **kwargs)
        move = requested_move(name, args, kwargs)
        if move is None or not self._side.reaches(move.device):
            return call(tensor, *args, **kwargs)
        copied, entry.copied = entry.copied, None
        same = move == entry.move and not tensor.requires_grad
        if copied is not None and same and tensor_version(tensor) == entry.version:
            self.answered += 1
            return self._side.take(copied, entry.ready)
        entry.plan.moves[entry.path] = move
        return call(tensor, *args, **kwargs)

    def read(self, call: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Around `.numpy`: an array that shares a tensor's memory may change it unseen."""
        entry = self._entries.get(id(tensor))
        if entry is not None and entry.tensor() is tensor:
            entry.copied = None
        return call(tensor, *args, **kwargs)


class _CopyStreams:
    """One extra stream per GPU."""

    def __init__(self) -> None:
        self._streams: dict[Any, Any] = {}

    def reaches(self, device: Any) -> bool:
        """Whether copies to a device can overlap the program's work."""
        return bool(device.type == "cuda")

    def copy(self, tensor: Any, move: Move) -> tuple[Any, Any]:
        """The tensor where the program will want it, and an event for its arrival. Uses torch's
        original method: an early copy does not count as the program's."""
        stream = self._streams.get(move.device)
        if stream is None:
            stream = self._streams[move.device] = torch.cuda.Stream(move.device)
        form = {} if move.memory_format is None else {"memory_format": move.memory_format}
        to = torch._C.TensorBase.to
        with torch.cuda.stream(stream), torch.inference_mode(False):
            copied = to(tensor, move.device, move.dtype, non_blocking=True, **form)
            event = torch.cuda.Event()
            event.record(stream)
        return copied, event

    def take(self, copied: Any, event: Any) -> Any:
        """Hand a copy to the program's stream, which keeps its memory until used. It began a batch
        ago. If it is unfinished, wait, as the program's own copy would: afterwards the program may
        change the source tensor."""
        if not event.query():
            event.synchronize()
        copied.record_stream(torch.cuda.current_stream(copied.device))
        return copied


class Prefetch(Fix):
    """The first batch shows which tensors the program moves where; later ones are moved early.

    The program still gets its batch on the CPU; its own `.to` or `.cuda` then returns the copy that
    is already there. A tensor changed in between, or read as an array, is moved again. One batch is
    fetched ahead, which needs room for one more on the GPU.
    """

    name = "prefetch"
    group = "data"
    title = "copy the next batch to the GPU while the current one computes"
    edited_by_call = True
    kind = FixKind.EXACT
    effort = "a small class around the loader"
    needs = "cuda"
    missing = "no tensor of a DataLoader is moved to the GPU by `.to` or `.cuda`"
    works_on = ProgramPart.LOADER
    fills_buffers = True
    failures = PINNING_FAILURES

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        pinned = pinning_changes(known)
        return None if pinned is None else [*pinned, changes.overlap_copies()]

    def check(self, live: LiveProgram) -> NotApplied | None:
        if live.loader is None:
            return None
        return pinning_refused(live.loader.arguments) or _refused(live.loader.loader)

    def install(self, value: Any, context: FixContext) -> None:
        marks = LoaderRecords(context)
        ahead = _Iterators(marks, _EarlyCopies(_CopyStreams()))
        marks.watch(lambda arguments: request_pinning(arguments, context))
        context.seams.loader_iterated(ahead.iterated)
        iterator = torch.utils.data.dataloader._BaseDataLoaderIter
        context.seams.around(iterator, "__next__", ahead.next)
        for name in ("to", "cuda"):
            context.seams.around(torch.Tensor, name, partial(ahead.copied.move, name))
        context.seams.around(torch.Tensor, "numpy", ahead.copied.read)

    def edit(self, value: Any, line: str) -> SourceEdit:
        return SourceEdit(
            "fetch each batch one step early and move it with non_blocking=True under"
            " `torch.cuda.stream(side)`; before use, have the current stream `wait_stream(side)`"
            " and `record_stream` the tensor on it"
        )


class _Iterators:
    """The loaders' iterators, each with its next batch."""

    def __init__(self, marks: LoaderRecords, copied: _EarlyCopies) -> None:
        self._marks = marks
        self._context = marks.context
        self.copied = copied
        self._plans: WeakKeyDictionary[Any, _MovePlan] = WeakKeyDictionary()
        self._loaders: WeakKeyDictionary[Any, tuple[Applied, _MovePlan]] = WeakKeyDictionary()
        self._ahead: WeakKeyDictionary[Any, BatchAhead] = WeakKeyDictionary()
        self._varies: WeakKeyDictionary[Any, Variation | None] = WeakKeyDictionary()
        self._between: WeakKeyDictionary[Any, BetweenBatches] = WeakKeyDictionary()
        self._handed_out = HandedOut(self._context.seams, self._told_of)

    def iterated(self, make: Any, loader: Any) -> Any:
        iterator = make(loader)
        if loader.persistent_workers:
            shut_down_at_exit(iterator)
        self._ahead.pop(iterator, None)  # persistent workers reuse the last epoch's iterator
        self._loaders.pop(iterator, None)
        self._between.pop(iterator, None)
        plan = self._plans.setdefault(loader, _MovePlan())
        if loader not in self._marks.chosen or plan.over or not self._fits(loader):
            return iterator
        if self._marks.began(loader, iterator) and has_own_generator(loader._index_sampler):
            self._varies[loader] = OTHER_SHUFFLES
        place, varies = self._marks.place(loader), self._varies[loader]
        self._loaders[iterator] = (Applied(LOADER, place=place, varies=varies), plan)
        self._handed_out.follow(loader, iterator)
        if between := _watched(loader):
            self._between[iterator] = between
        return iterator

    def next(self, call: Any, iterator: Any) -> Any:
        known = self._loaders.get(iterator)
        if known is None:
            return call(iterator)
        record, plan = known
        ahead, between = self._ahead.get(iterator), self._between.get(iterator)
        if ahead is not None and between is not None:
            self._told(record, between.changed())
        try:
            if ahead is None and not (plan.moves and plan.apart):
                batch = call(iterator)  # not fetched ahead: it shows how the program uses it
                if not plan.over and not plan.apart and not plan.compare(batch):
                    plan.over = True
                    shared = NotApplied(BATCHES_SHARE_MEMORY, LOADER, place=record.place)
                    self._context.not_applied(shared)
                self._copy(batch, record.place, plan)
                return batch
            if ahead is None:
                ahead = self._ahead[iterator] = BatchAhead()
            batch = ahead.next(
                lambda: call(iterator), lambda later: self._copy(later, record.place, plan)
            )
        except StopIteration:
            self._marks.ended(iterator)
            if ahead is not None and between is not None:
                self._told(record, between.ended())
            raise
        if between is not None:
            between.came()
        if self.copied.answered:
            self._context.applied(record, FixKind.NUMERIC if record.varies else None)
        return batch

    def _told_of(self, loader: Any, held: Trait | None) -> None:
        """Batches are pinned copies of something that others hold."""
        self._told(Applied(LOADER, place=self._marks.place(loader)), held)

    def _told(self, record: Applied, changed: Trait | None) -> None:
        """Report that something the next batch was made from has changed."""
        if changed is not None:
            self._context.applied(replace(record, varies=may_change(changed)), FixKind.NUMERIC)

    def _copy(self, batch: Any, place: SourceLine | None, plan: _MovePlan) -> None:
        if plan.over:
            return
        try:
            self.copied.know(batch, plan)
        except RuntimeError as problem:  # most likely the device is full
            plan.over = True
            error = str(problem).partition("\n")[0]
            self._context.not_applied(NotApplied(COPY_FAILED, LOADER, place=place, error=error))

    def _fits(self, loader: Any) -> bool:
        """Whether fetching one ahead is harmless; records what it may change."""
        if loader in self._varies:
            return True
        refused, varies = _refused(loader), None
        if refused is not None:
            self._context.not_applied(replace(refused, place=self._marks.place(loader)))
            return False
        if loader.num_workers == 0:
            varies = dataset_traits(loader.dataset, loader.collate_fn).varies()
        self._varies[loader] = varies or sampler_draw_change(loader._index_sampler)
        return True


def _refused(loader: Any) -> NotApplied | None:
    """Why no batch of a loader may be fetched ahead; None where one may."""
    iterable = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    return NotApplied(ITERABLE_IN_PROCESS, LOADER) if iterable and not loader.num_workers else None


def _watched(loader: Any) -> BetweenBatches | None:
    """What a batch fetched ahead is made from in the program's process."""
    if loader.num_workers:
        return sampler_watch(loader)
    return BetweenBatches(dataset_traits(loader.dataset, loader.collate_fn, loader._index_sampler))


FIX = Prefetch()
