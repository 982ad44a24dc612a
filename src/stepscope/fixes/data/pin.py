"""Have loaders put batches into pinned memory, and copy them to the GPU without waiting."""

from functools import partial
from typing import Any, Final
from weakref import WeakSet, ref

from stepscope.analyze.replay.known import Changes, KnownProgram, pinned_speedup
from stepscope.fixes.applicability import ProgramPart
from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.fixes.edit.calls import with_argument
from stepscope.fixes.inspect.dataset_traits import dataset_traits
from stepscope.fixes.inspect.loaders import LoaderRecords, shut_down_at_exit
from stepscope.fixes.inspect.tensors import (
    cpu_tensors,
    leaves_blocking_open,
    requested_move,
    storage_key,
    tensor_version,
)
from stepscope.fixes.lazy import changes, torch
from stepscope.record.fix import LOADER, Applied, NotApplied, Reason, SourceLine, Target

_TRIED: Final = 2  # batches copied as before, while it is seen what the program does with them
_MANY: Final = 256  # tensors handed out, before those that are gone are forgotten
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
    seen ends it. Changes through numpy are not seen.
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

    def install(self, value: Any, context: FixContext) -> None:
        marks = LoaderRecords(context)
        copies = NonBlockingCopies(context)

        def iterated(make: Any, loader: Any) -> Any:
            iterator = make(loader)
            if loader in marks.chosen:
                context.applied(Applied(LOADER, place=marks.place(loader)))
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

    def edit(self, value: Any, line: str) -> SourceEdit:
        words = "pass pin_memory=True to the DataLoader and non_blocking=True to `.to` or `.cuda`"
        pinned = with_argument(line, ("DataLoader",), "pin_memory", "True")
        return SourceEdit(
            words, pinned or with_argument(line, ("to", "cuda"), "non_blocking", "True")
        )


class NonBlockingCopies:
    """Knows the tensors loaders hand out, and what becomes of them."""

    def __init__(self, context: FixContext) -> None:
        self._context = context
        self._iterators: WeakSet[Any] = WeakSet()
        self._known: dict[int | None, Any] = {}  # a storage → the tensor it was handed out in
        self._moved: list[tuple[Any, int]] = []
        self._place: SourceLine | None = None  # looked up in the first batches only
        self._said = False
        self._tried = 0
        self._over = False

    def follow(self, iterator: Any) -> None:
        """Batches of this iterator are to be known."""
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

    def _is_known(self, tensor: Any) -> bool:
        """Whether a tensor, or one whose memory it shows, came out of a loader and still lives."""
        handed_out = self._known.get(storage_key(tensor))
        return handed_out is not None and handed_out() is not None

    def _check(self) -> None:
        """Whether the tensors moved since the last batch are still what they were."""
        for tensor, count in self._moved:
            alive = tensor()
            if alive is not None and alive._version != count:
                self._over = True
                self._context.not_applied(NotApplied(CHANGED_IN_PLACE, place=self._place))
        self._tried += bool(self._moved)
        self._moved.clear()


def pinning_changes(known: KnownProgram) -> Changes:
    """Copies to the device no longer block, at the rate measured for pinned memory, and a thread
    takes batches over from workers."""
    if known.device != "cuda":
        return None
    return [changes.unblock_copies(pinned_speedup(known)), changes.pin_batches()]


def request_pinning(arguments: dict[str, Any], context: FixContext) -> bool | None:
    """Have a loader pin its batches; None where it cannot."""
    if arguments.get("pin_memory"):
        return True
    seen = dataset_traits(arguments.get("dataset"), arguments.get("collate_fn"))
    if seen.cuda is not None:
        record = NotApplied(CUDA_IN_DATASET, LOADER, place=context.place(), trait=seen.cuda)
        context.not_applied(record)
        return None
    arguments["pin_memory"] = True
    return True


FIX = Pin()
