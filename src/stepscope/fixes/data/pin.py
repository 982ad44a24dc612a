"""Have loaders put batches into pinned memory, and copy them to the GPU without waiting."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet, ref

from stepscope.analyze.replay.known import Changes, KnownProgram, pinned_speedup
from stepscope.fixes.applicability import ProgramPart
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit
from stepscope.fixes.edit.calls import with_argument
from stepscope.fixes.inspect.dataset_traits import dataset_traits
from stepscope.fixes.inspect.loaders import LoaderRecords, shut_down_at_exit
from stepscope.fixes.inspect.state_watch import may_change
from stepscope.fixes.inspect.tensors import (
    cpu_tensors,
    leaves_blocking_open,
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
    Target,
    Trait,
    TraitKind,
)

_TRIED: Final = 2  # first batches, copied as before to watch what the program does with them
_MANY: Final = 256  # tensors handed out between cleanups of dead ones
COPY = Target("copy", "the copy{at} no longer waits")
CUDA_IN_DATASET = Reason("cuda_in_dataset", "{subject}: its dataset {trait}")
CHANGED_IN_PLACE = Reason(
    "changed_in_place", "a batch is changed in place after its copy{at}: copies wait again"
)
UNPINNABLE = Reason(
    "unpinnable", "the loader's batches hold tensors that cannot be pinned (on the GPU, or sparse)"
)
PINNING_FAILURES = {"cannot pin|only dense CPU tensors can be pinned": UNPINNABLE}


class Pin(Fix):
    """Only tensors that came out of a loader are copied without waiting, and only to the GPU.

    A pinned tensor must not be changed while it is copied. Changes in place after the copy are
    watched for: in the first batches, which are still copied as before, and later; the first one
    seen ends it. A tensor read as an array, which may change it unseen, is copied as before.
    """

    name = "pin"
    group = "data"
    title = "pin the memory of batches and copy them to the GPU without waiting"
    kind = FixKind.EXACT
    effort = "one argument, and one in each `.to`"
    needs = "cuda"
    missing = "no DataLoader"
    works_on = ProgramPart.LOADER
    failures = PINNING_FAILURES
    argument = "pin_memory"

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        return pinning_changes(known)

    def check(self, live: LiveProgram) -> NotApplied | None:
        return None if live.loader is None else pinning_refused(live.loader.arguments)

    def install(self, value: Any, context: FixContext) -> None:
        marks = LoaderRecords(context)
        copies = NonBlockingCopies(context)

        def tell(loader: Any, held: Trait | None) -> None:
            record = Applied(LOADER, place=marks.place(loader), varies=may_change(held))
            context.applied(record, FixKind.NUMERIC if held else None)

        handed_out = HandedOut(context.seams, tell)

        def iterated(make: Any, loader: Any) -> Any:
            iterator = make(loader)
            if loader in marks.chosen:
                handed_out.follow(loader, iterator)
                copies.follow(iterator)
                if loader.persistent_workers:
                    shut_down_at_exit(iterator)
            return iterator

        marks.watch(lambda arguments: request_pinning(arguments, context))
        context.seams.loader_iterated(iterated)
        iterator = torch.utils.data.dataloader._BaseDataLoaderIter
        context.seams.around(iterator, "__next__", copies.next)
        for name in ("to", "cuda"):
            context.seams.around(torch.Tensor, name, partial(copies.move, name))
        context.seams.around(torch.Tensor, "numpy", copies.read)

    def edit(self, value: Any, line: str) -> SourceEdit:
        words = "pass pin_memory=True to the DataLoader and non_blocking=True to `.to` or `.cuda`"
        pinned = with_argument(line, ("DataLoader",), "pin_memory", "True")
        return SourceEdit(
            words, pinned or with_argument(line, ("to", "cuda"), "non_blocking", "True")
        )


class NonBlockingCopies:
    """Tracks the tensors that loaders hand out."""

    def __init__(self, context: FixContext, wait: Callable[[], Any] | None = None) -> None:
        self._context = context
        self._wait = wait or (lambda: torch.cuda.current_stream().synchronize())
        self._iterators: WeakSet[Any] = WeakSet()
        self._known: dict[int | None, Any] = {}  # a storage → the tensor it was handed out in
        self._moved: list[tuple[Any, int]] = []
        self._place: SourceLine | None = None  # looked up in the first batches only
        self._said = False
        self._tried = 0
        self._over = False

    def follow(self, iterator: Any) -> None:
        """Track the batches of this iterator."""
        self._iterators.add(iterator)

    def next(self, call: Any, iterator: Any) -> Any:
        if self._over or iterator not in self._iterators:
            return call(iterator)
        batch = call(iterator)
        self._check()
        for _, tensor in cpu_tensors(batch):
            key = storage_key(tensor)
            if key is not None:
                self._known[key] = ref(tensor)
        if len(self._known) > _MANY:
            self._known = {key: kept for key, kept in self._known.items() if kept() is not None}
        return batch

    def move(self, name: str, call: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Around `.to` or `.cuda` of any tensor; `name` is which."""
        if self._over or not self._known or tensor.is_cuda or not self._is_known(tensor):
            return call(tensor, *args, **kwargs)
        count = tensor_version(tensor)
        aim = requested_move(name, args, kwargs) if leaves_blocking_open(args, kwargs) else None
        if aim is None or count is None or aim.device.type != "cuda":
            return call(tensor, *args, **kwargs)
        if not self._said:
            self._place = self._context.place()
        self._moved.append((ref(tensor), count))
        if self._tried < _TRIED:
            return call(tensor, *args, **kwargs)
        if not self._said:
            self._context.applied(Applied(COPY, place=self._place))
            self._said = True
        return call(tensor, *args, **kwargs, non_blocking=True)

    def read(self, call: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Around `.numpy`: what shares a tensor's memory may change it unseen."""
        if not self._over and self._is_known(tensor):
            key = storage_key(tensor)
            del self._known[key]
            if any(moved() is not None and storage_key(moved()) == key for moved, _ in self._moved):
                self._wait()
        return call(tensor, *args, **kwargs)

    def _is_known(self, tensor: Any) -> bool:
        """Whether a tensor, or the one it is a view of, came out of a loader and is still alive."""
        handed_out = self._known.get(storage_key(tensor))
        return handed_out is not None and handed_out() is not None

    def _check(self) -> None:
        """Check that the tensors moved since the last batch are unchanged."""
        for tensor, count in self._moved:
            alive = tensor()
            if alive is not None and alive._version != count:
                self._over = True
                self._context.not_applied(NotApplied(CHANGED_IN_PLACE, place=self._place))
        self._tried += bool(self._moved)
        self._moved.clear()


class HandedOut:
    """Tells of which loaders a pinned batch is nothing but a copy: where others hold what is in a
    batch, a change in place no longer reaches them, nor theirs the batch. torch's own collating
    makes new tensors each time, and workers share only what is made to be shared.

    `tell(loader, held)` is called with each epoch or batch; `held` is None where nothing is."""

    def __init__(self, seams: Any, tell: Callable[[Any, Trait | None], None]) -> None:
        self._tell = tell
        self._loaders: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # by fetcher
        fetchers = torch.utils.data._utils.fetch
        for fetcher in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):
            seams.around(fetcher, "fetch", self._fetch)

    def follow(self, loader: Any, iterator: Any) -> None:
        """A loader that is to pin begins an epoch."""
        if loader.collate_fn is torch.utils.data.default_collate:
            self._tell(loader, None)
        elif loader.num_workers:
            self._tell(loader, dataset_traits(loader.dataset, loader.collate_fn).shared)
        else:
            self._loaders[iterator._dataset_fetcher] = ref(loader)

    def _fetch(self, call: Any, fetcher: Any, index: Any) -> Any:
        batch = call(fetcher, index)
        made_by = self._loaders.get(fetcher)
        if made_by is not None and (loader := made_by()) is not None:
            held, trait = _held_elsewhere(_references(batch), batch), None
            if held is not None:
                trait = Trait(TraitKind.HANDED_OUT, _name_of(held, loader.dataset))
            self._tell(loader, trait)
        return batch


_MOST_NODES: Final = 512
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes)


def _nodes(batch: Any) -> list[Any]:
    """The batch, and the containers and tensors in it."""
    found, seen = [batch], {id(batch)}
    for thing in found:
        inside: Any = ()
        if isinstance(thing, torch.Tensor):
            continue
        if isinstance(thing, Mapping):
            inside = thing.values()
        elif isinstance(thing, (list, tuple)):
            inside = thing
        elif hasattr(thing, "__dict__") and not isinstance(thing, type):
            inside = vars(thing).values()
        new = [one for one in inside if not isinstance(one, _PLAIN) and id(one) not in seen]
        found += new[: _MOST_NODES - len(found)]
        seen.update(map(id, new))
    return found


def _references(batch: Any) -> list[int]:
    """How many refer to each node of a batch that one variable of the caller's refers to."""
    return [*map(sys.getrefcount, _nodes(batch))]


def _unheld() -> tuple[int, int]:
    """The same of a batch, and of what is in one, that nobody else has."""
    batch = [torch.empty(0)]
    outer, inner = _references(batch)
    return outer, inner


def _held_elsewhere(references: list[int], batch: Any) -> Any:
    """What of a batch somebody else has too, or may have; None: it is all new."""
    outer, inner = _unheld()
    nodes = _nodes(batch)
    if references[0] > outer:
        return batch
    for node, count in zip(nodes[1:], references[1:], strict=True):
        if count > inner:
            return node
    own = torch.empty(0)
    alone = _storage_uses(own)
    tensors = (node for node in nodes if isinstance(node, torch.Tensor))
    return next((one for one in tensors if _storage_uses(one) != alone), None)


def _storage_uses(tensor: Any) -> int:
    """How many tensors show a tensor's memory; 0 where that is not torch's own, or where the tensor
    collects gradients, which a copy does not."""
    uses = getattr(torch._C, "_storage_Use_Count", None)  # not in every version
    if storage_key(tensor) is None or tensor.requires_grad:
        return 0
    storage = tensor.untyped_storage()
    if not storage.resizable():
        return 0
    return int(uses(storage._cdata)) if uses else 1


def _name_of(held: Any, dataset: Any) -> str:
    """The attribute of a dataset that has something; the dataset's class where none is found."""
    key = storage_key(held) if isinstance(held, torch.Tensor) else None
    for name, value in getattr(dataset, "__dict__", {}).items():
        inside = list(value.values()) if isinstance(value, dict) else value
        for one in (value, *(inside if isinstance(inside, (list, tuple)) else ())):
            same = isinstance(one, torch.Tensor) and key is not None and storage_key(one) == key
            if one is held or same:
                return str(name)
    return type(dataset).__qualname__


def pinning_changes(known: KnownProgram) -> Changes:
    """Copies to the device no longer block, at the rate measured for pinned memory, and a thread
    takes batches over from workers."""
    if known.device != "cuda":
        return None
    return [changes.unblock_copies(pinned_speedup(known)), changes.pin_batches()]


def request_pinning(arguments: dict[str, Any], context: FixContext) -> bool | None:
    """Make a loader pin its batches; None if it cannot."""
    if arguments.get("pin_memory"):
        return True
    refused = pinning_refused(arguments)
    if refused is not None:
        context.not_applied(replace(refused, place=context.place()))
        return None
    arguments["pin_memory"] = True
    return True


def pinning_refused(arguments: dict[str, Any]) -> NotApplied | None:
    """Why a loader cannot pin its batches; None where it may."""
    seen = dataset_traits(arguments.get("dataset"), arguments.get("collate_fn"))
    unpinned = seen.cuda is not None and not arguments.get("pin_memory")
    return NotApplied(CUDA_IN_DATASET, LOADER, trait=seen.cuda) if unpinned else None


FIX = Pin()
