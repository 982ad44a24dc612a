"""Keep a loader's workers from epoch to epoch instead of starting them anew."""

import sys
from typing import Any
from weakref import WeakKeyDictionary

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ALREADY_ON, ObservedProgram, ProgramPart, unsuitable
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram
from stepscope.fixes.inspect.dataset_traits import dataset_traits
from stepscope.fixes.inspect.loaders import HAS_NO_WORKERS, LoaderRecords, shut_down_at_exit
from stepscope.fixes.inspect.state_watch import StateWatch, WorkerReports, may_change
from stepscope.fixes.lazy import changes, torch
from stepscope.record.fix import LOADER, Applied, NotApplied, Reason, Trait
from stepscope.record.trial import Rejection

_SHORT_EPOCH = 130  # steps: a trial can have three such epochs
KEEPS_WORKERS = Reason("keeps_workers", "{subject} already keeps its workers")
DATASET_CHANGED = Reason(
    "dataset_changed",
    "the program changes the dataset of {subject} between epochs, so workers restart: {trait}",
)


class Persistent(Fix):
    """An epoch with kept workers draws no base seed: it is drawn here, so that shuffles stay the
    same. Kept workers do not see what the program changes between epochs, and keep their own
    changes: if either is detected, new ones are started."""

    name = "persistent"
    group = "data"
    title = "keep a loader's workers from epoch to epoch"
    kind = FixKind.EXACT
    effort = "one argument"
    missing = "no DataLoader"
    works_on = ProgramPart.LOADER
    argument = "persistent_workers"
    requires = "workers"
    fills_buffers = True

    def applies(self, program: ObservedProgram) -> Rejection | None:
        kept = all(one.get("persistent_workers") for one in program.loaders)
        return unsuitable(ALREADY_ON) if kept else None

    def needed_beside(self, program: ObservedProgram) -> bool:
        """In short epochs, restarting workers takes much of what they gain."""
        sizes = [(one.get("samples"), one.get("batch_size")) for one in program.loaders]
        return all(count and size and count / size <= _SHORT_EPOCH for count, size in sizes)

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        loaders = known.show.loaders if known.show is not None else ()
        started = any(one.num_workers for one in loaders)  # as a finding says: not in its steps
        return None if started or not loaders else [changes.keep_workers()]

    def check(self, live: LiveProgram) -> NotApplied | None:
        reason = None if live.loader is None else _refused(live.loader.arguments)
        return None if reason is None else NotApplied(reason, LOADER)

    def install(self, value: Any, context: FixContext) -> None:
        marks = LoaderRecords(context)
        reports = WorkerReports(context)
        watches: WeakKeyDictionary[Any, StateWatch] = WeakKeyDictionary()

        def decide(arguments: dict[str, Any]) -> bool | None:
            refused = _refused(arguments)
            if refused is None or (refused is KEEPS_WORKERS and marks.remade(arguments)):
                arguments["persistent_workers"] = True
                return True
            context.loader_not_applied(refused)
            return None

        def reported(loader: Any) -> Trait | None:
            """What a worker reported as changed during an epoch: by itself, or in shared memory."""
            trait = reports.seen(loader.dataset)
            if trait is not None:
                record = Applied(LOADER, place=marks.place(loader), varies=may_change(trait))
                context.applied(record, FixKind.NUMERIC)
            return trait

        def end() -> None:
            for loader in list(watches):
                reported(loader)

        def iterated(make: Any, loader: Any) -> Any:
            if loader not in marks.chosen:
                return make(loader)
            if loader._iterator is None:
                seen = dataset_traits(loader.dataset, loader.collate_fn)
                watch = watches[loader] = StateWatch(seen)
                reports.watch(loader.dataset, watch)
                hidden = watch.unwatched or seen.shares(loader.collate_fn)
                varies = seen.varies() or may_change(hidden)
                record = Applied(LOADER, place=marks.place(loader), varies=varies)
                context.applied(record, FixKind.NUMERIC if record.varies else None)
                shut_down_at_exit(iterator := make(loader))
                return iterator
            if _in_use(loader):  # two iterators at a time: the second gets workers of its own
                return loader._get_iterator()
            trait = reported(loader) or watches[loader].changed(whole=True)
            if trait is not None:
                loader._iterator._shutdown_workers()
                loader._iterator = None
                place = marks.place(loader)
                context.not_applied(NotApplied(DATASET_CHANGED, LOADER, place=place, trait=trait))
                return iterated(make, loader)
            # The draw with which torch would have begun a new iterator.
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            return make(loader)

        marks.watch(decide)
        context.seams.loader_iterated(iterated)
        context.seams.core.on_end.append(end)


def _refused(arguments: dict[str, Any]) -> Reason | None:
    """Why there is nothing to do for a loader; None where there is."""
    if not arguments.get("num_workers"):
        return HAS_NO_WORKERS
    return KEEPS_WORKERS if arguments.get("persistent_workers") else None


def _in_use(loader: Any) -> bool:
    """Whether a loop still uses the iterator that the next epoch would restart."""
    iterator = loader._iterator
    held_elsewhere = sys.getrefcount(iterator) > 3  # the loader, this name, the argument
    delivered = iterator._num_yielded > 0 and not iterator._task_info
    return held_elsewhere and not delivered


FIX = Persistent()
