"""Make batches in worker processes while the program's own process trains.

Every iterator draws a base seed when it is made. Without workers the sampler's own seed follows
with the first batch; with workers it follows at once, since indices are sent ahead. In between a
program may draw, or make another iterator: `zip(one, other)`. So the first indices are sent with
the first batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import get_start_method
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ObservedProgram, ProgramPart, waits_little
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram
from stepscope.fixes.inspect.dataset_traits import DatasetTraits, dataset_traits
from stepscope.fixes.inspect.devices import allowed_cpus
from stepscope.fixes.inspect.loaders import (
    OTHER_SHUFFLES,
    LoaderRecords,
    has_own_generator,
    sampler_draw_change,
)
from stepscope.fixes.inspect.state_watch import (
    BetweenBatches,
    StateWatch,
    WorkerReports,
    may_change,
    sampler_changes,
    sampler_watch,
)
from stepscope.fixes.lazy import changes, torch
from stepscope.record.fix import (
    LOADER,
    Applied,
    Broke,
    DataChange,
    NotApplied,
    Reason,
    Target,
    Trait,
    TraitKind,
    Variation,
)
from stepscope.record.trial import Rejection

LOADER_WORKERS = Target("loader_workers", "DataLoader{at}{change} workers{varies}")
WORKERS_ALREADY = Reason("workers_already", "{subject} already has {value} workers")
CUDA_IN_WORKERS = Reason(
    "cuda_in_workers", "{subject}: its dataset {trait}; keep its samples on the CPU"
)
OPEN_HANDLE = Reason(
    "open_handle", "{subject}: its dataset holds {trait}; open it at the first sample instead"
)
EACH_WORKER_ALL_DATA = Reason(
    "each_worker_all_data",
    "{subject}: each worker would give all the data of its IterableDataset; have it ask"
    " torch.utils.data.get_worker_info() for its share",
)
GPU_IN_WORKER = Reason(
    "gpu_in_worker",
    "the dataset uses the GPU, which worker processes cannot; move its samples in the training"
    " loop instead",
)
SHARED_MEMORY_FULL = Reason(
    "shared_memory_full",
    "too little shared memory (/dev/shm) for batches from workers; give the container"
    " more (docker: --shm-size) or use fewer workers",
)
WORKER_KILLED = Reason(
    "worker_killed", "a worker was killed, probably out of memory; use fewer workers"
)
TOO_MANY_FILES = Reason(
    "too_many_files", "workers need more open files than allowed; raise `ulimit -n`"
)
NESTED_PROCESSES = Reason(
    "nested_processes", "the dataset starts its own processes, which workers may not"
)
NO_MAIN_GUARD = Reason(
    "no_main_guard",
    'spawned workers import the program again; put what it runs under `if __name__ == "__main__":`',
)
UNPICKLABLE = Reason("unpicklable", "the dataset cannot be pickled, which spawned workers need")


class _DeferredStart:
    """Defers sending an epoch's first indices until its first batch."""

    def __init__(self, marks: LoaderRecords, epochs: "_Epochs") -> None:
        self._marks = marks
        self._epochs = epochs
        self._waiting: WeakSet[Any] = WeakSet()
        self._making = False
        iterator = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
        marks.context.seams.around(iterator, "_try_put_index", self._put)
        marks.context.seams.around(iterator, "_next_data", self._next)

    def make(self, make: Callable[[Any], Any], loader: Any) -> Any:
        """An epoch's iterator, which sends no index yet."""
        self._making = True
        try:
            return make(loader)
        finally:
            self._making = False

    def _put(self, call: Callable[[Any], None], iterator: Any) -> None:
        if self._making:
            self._waiting.add(iterator)
        else:
            call(iterator)

    def _next(self, call: Callable[[Any], Any], iterator: Any) -> Any:
        if iterator in self._waiting:
            self._waiting.discard(iterator)
            for _ in range(iterator._prefetch_factor * iterator._num_workers):
                iterator._try_put_index()
        self._epochs.asked(iterator)
        try:
            batch = call(iterator)
        except StopIteration:
            self._marks.ended(iterator)
            self._epochs.ended(iterator)
            raise
        self._epochs.came(iterator)
        return batch


@dataclass(slots=True)
class _Epoch:
    """An epoch with workers, and what its batches are made from."""

    dataset: Any
    record: Applied
    samples: StateWatch
    sampler: BetweenBatches | None


class _Epochs:
    """Detects what changes while workers make batches from copies, ahead of the program."""

    def __init__(self, context: FixContext) -> None:
        self._context = context
        self._reports = WorkerReports(context)
        self._under_way: WeakKeyDictionary[Any, _Epoch] = WeakKeyDictionary()
        self._first: WeakKeyDictionary[Any, StateWatch] = WeakKeyDictionary()
        context.seams.core.on_end.append(self._end)

    def watch(
        self, loader: Any, before: int, seen: DatasetTraits
    ) -> tuple[StateWatch, Variation | None]:
        """Must be called before an epoch's workers are forked. `before`: how many there were."""
        samples = StateWatch(seen)
        self._reports.watch(loader.dataset, samples, unshared=not before)
        first = self._first.setdefault(loader, samples)
        # Memos filled in earlier epochs exist only in the program's process.
        outdated = first.changed(whole=True) if seen.memos else None
        return samples, may_change(samples.unwatched or outdated)

    def began(self, iterator: Any, loader: Any, record: Applied, samples: StateWatch) -> None:
        epoch = _Epoch(loader.dataset, record, samples, sampler_watch(loader))
        self._under_way[iterator] = epoch

    def asked(self, iterator: Any) -> None:
        """The program requests its next batch."""
        epoch = self._under_way.get(iterator)
        if epoch is not None:
            self._told(epoch, may_change(epoch.samples.changed()))
            if epoch.sampler is not None:
                self._told(epoch, sampler_changes(epoch.sampler.changed()))

    def came(self, iterator: Any) -> None:
        """It received the batch."""
        epoch = self._under_way.get(iterator)
        if epoch is not None and epoch.sampler is not None:
            epoch.sampler.came()

    def ended(self, iterator: Any) -> None:
        """An epoch is over."""
        epoch = self._under_way.pop(iterator, None)
        if epoch is not None:
            self._told(epoch, may_change(self._reports.seen(epoch.dataset)))
            self._told(epoch, may_change(epoch.samples.changed(whole=True)))
            if epoch.sampler is not None:
                self._told(epoch, sampler_changes(epoch.sampler.ended()))

    def _end(self) -> None:
        for iterator in list(self._under_way):
            self.ended(iterator)

    def _told(self, epoch: _Epoch, varies: Variation | None) -> None:
        if varies is not None:
            self._context.applied(replace(epoch.record, varies=varies), FixKind.NUMERIC)


_MOST: Final = 12
_PREDICTED: Final = 4  # workers, where no number is given
_FAILURES: Final = {
    "in forked subprocess": GPU_IN_WORKER,
    "shared memory|</torch_": SHARED_MEMORY_FULL,
    "killed by signal: Killed": WORKER_KILLED,
    "ancdata": TOO_MANY_FILES,
    "daemonic processes are not allowed": NESTED_PROCESSES,
    "before the current process has finished its bootstrapping": NO_MAIN_GUARD,
    "pickle": UNPICKLABLE,
}


class Workers(Fix):
    """Random draws of the main process stay in place; those of the dataset move to the workers."""

    name = "workers"
    group = "data"
    title = "make batches in worker processes"
    kind = FixKind.EXACT
    effort = "one argument"
    values = ("N",)
    suggested = ("4", "8", "12", "2")
    missing = "no DataLoader"
    works_on = ProgramPart.LOADER
    argument = "num_workers"
    failures = _FAILURES
    fills_buffers = True

    def applies(self, program: ObservedProgram) -> Rejection | None:
        return waits_little(program)

    def in_use(self, program: ObservedProgram) -> bool:
        return program.has_workers

    def first_values(self, program: ObservedProgram, proposed: str | None) -> list[str | None]:
        """The default number, or twice the present one.

        A finding names the fewest that keep up with the present step, which other fixes shorten:
        with a GPU, whose programs leave cores idle, start with at least the default, unless the
        finding is too many workers.
        """
        usual = default_workers(program.usable_cores)
        have = max((int(one.get("num_workers") or 0) for one in program.loaders), default=0)
        if proposed is not None:
            more = program.device == "cuda" and int(proposed) > have
            return [str(max(usual, int(proposed))) if more else proposed]
        count = usual if have < usual else min(2 * have, most_workers(program))
        return [str(count)] if count > have else []

    def most(self, program: ObservedProgram) -> int:
        return most_workers(program)

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        loads = known.show is not None and known.show.loaders
        return [changes.set_workers(int(value or _PREDICTED))] if loads else None

    def check(self, live: LiveProgram) -> NotApplied | None:
        refused = None if live.loader is None else _refused(live.loader.arguments)
        return None if refused is None else replace(refused, target=LOADER)

    def install(self, value: Any, context: FixContext) -> None:
        count = value or default_workers()
        marks = LoaderRecords(context)
        epochs = _Epochs(context)
        start = _DeferredStart(marks, epochs)

        def decide(arguments: dict[str, Any]) -> int | None:
            """The number of workers the program gave it; None if that stays."""
            have: int = arguments.get("num_workers") or 0
            before: int | None = marks.remade(arguments) if have == count else None
            if before is not None:
                return before
            refused = _refused(arguments)
            if have >= count:
                context.loader_not_applied(WORKERS_ALREADY, have)
            elif refused is not None:
                context.not_applied(replace(refused, target=LOADER, place=context.place()))
            else:
                arguments["num_workers"] = count
                return have
            return None

        def iterated(make: Any, loader: Any) -> Any:
            before = marks.chosen.get(loader)
            if before is None:
                return make(loader)
            seen = dataset_traits(loader.dataset, loader.collate_fn)
            samples, changing = epochs.watch(loader, before, seen)
            place, varies = marks.place(loader), _variation(loader, before, seen) or changing
            record = Applied(LOADER_WORKERS, place=place, before=before, after=count, varies=varies)
            context.applied(record, FixKind.NUMERIC if varies else None)
            iterator = make(loader) if before else start.make(make, loader)
            epochs.began(iterator, loader, record, samples)
            if marks.began(loader, iterator) and has_own_generator(loader._index_sampler):
                shuffles = Applied(LOADER, place=place, varies=OTHER_SHUFFLES)
                context.applied(shuffles, FixKind.NUMERIC)
            return iterator

        marks.watch(decide)
        context.seams.loader_iterated(iterated)

    def explain(self, error: BaseException, line: str) -> Broke | None:
        broke = super().explain(error, line)
        forked = get_start_method(allow_none=True) == "fork"
        return None if broke and broke.reason == UNPICKLABLE and forked else broke

    def argument_value(self, value: Any) -> str:
        return str(value or default_workers())


def most_workers(program: ObservedProgram) -> int:
    """As many as cores; four times that if samples wait rather than compute."""
    return program.usable_cores * (4 if program.samples_wait else 1)


def default_workers(cores: int | None = None) -> int:
    """One core stays free for the training loop. `cores` None: those this process may use."""
    return max(1, min(_MOST, (cores or allowed_cpus()) - 1))


def _refused(arguments: dict[str, Any]) -> NotApplied | None:
    dataset = arguments.get("dataset")
    seen = dataset_traits(dataset, arguments.get("collate_fn"))
    if seen.cuda is not None:
        return NotApplied(CUDA_IN_WORKERS, trait=seen.cuda)
    if seen.handle is not None:
        return NotApplied(OPEN_HANDLE, trait=seen.handle)
    if not isinstance(dataset, torch.utils.data.IterableDataset):
        return None
    splits = type(dataset).__module__.startswith("datasets.") or (
        dataset_traits(dataset, arguments.get("worker_init_fn")).splits
    )
    return None if splits else NotApplied(EACH_WORKER_ALL_DATA)


def _variation(loader: Any, before: int, seen: DatasetTraits) -> Variation | None:
    """How batches from more workers may differ, or None."""
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return Variation(DataChange.ORDER)
    if varies := seen.varies() or may_change(seen.logs or seen.shares(loader.collate_fn)):
        return varies
    if seen.splits:
        return Variation(DataChange.SAMPLES, False, Trait(TraitKind.ASKS_WORKER))
    if seen.sums and not before:
        return Variation(DataChange.ROUNDING, certain=False, because=seen.sums)
    return sampler_draw_change(loader._index_sampler)


FIX = Workers()
