"""Have worker processes make the batches, while the program's own process trains."""

from multiprocessing import get_start_method
from typing import Any, Final

from stepscope.fixes.base import Edit, Fix, Hands, Kind
from stepscope.fixes.data_cpus import allowed_cpus
from stepscope.fixes.data_look import look
from stepscope.fixes.loader_marks import Marks
from stepscope.fixes.loader_samplers import draws_as_it_goes, has_generator
from stepscope.fixes.loader_start import LateStart
from stepscope.fixes.source import with_arguments

_MOST: Final = 12
_FAILURES: Final = {
    "in forked subprocess": (
        "the dataset uses the GPU, which worker processes cannot; move its samples in the training"
        " loop instead"
    ),
    "shared memory": (
        "there is too little shared memory (/dev/shm) for batches from workers; give the container"
        " more (docker: --shm-size) or ask for fewer workers"
    ),
    "</torch_": "there is too little shared memory (/dev/shm) for batches from workers",
    "killed by signal: Killed": (
        "a worker was killed, most likely for want of memory; ask for fewer workers"
    ),
    "ancdata": "workers need more open files than are allowed; raise `ulimit -n`",
    "daemonic processes are not allowed": (
        "the dataset starts processes of its own, which workers may not"
    ),
    "before the current process has finished its bootstrapping": (
        'workers import the program anew here; put what it runs under `if __name__ == "__main__":`'
    ),
    "pickle": "the dataset cannot be sent to workers, which are started anew here",
}


class Workers(Fix):
    """Random draws of the main process stay in place; those of the dataset move to the workers."""

    name = "workers"
    group = "data"
    title = "make batches in worker processes"
    kind = Kind.EXACT
    effort = "one argument"
    values = ("N",)
    suggested = ("4", "8", "12", "2")
    missing = "no DataLoader is used here"

    def install(self, value: Any, hands: Hands) -> None:
        count = value or usual_workers()
        marks = Marks(hands)
        start = LateStart(marks)

        def decide(arguments: dict[str, Any]) -> int | None:
            """The number of workers the program gave it; None if that is left as it is."""
            have: int = arguments.get("num_workers") or 0
            before: int | None = marks.remade(arguments) if have == count else None
            if before is not None:
                return before
            where = f"the DataLoader at {hands.place()}"
            reason = _unfit(arguments)
            if have >= count:
                hands.unfit(f"{where} has {have} workers already")
            elif reason is not None:
                hands.unfit(f"{where}: {reason}")
            else:
                arguments["num_workers"] = count
                return have
            return None

        def iterated(make: Any, loader: Any) -> Any:
            before = marks.chosen.get(loader)
            if before is None:
                return make(loader)
            where = marks.where(loader)
            change = _change(loader, before)
            text = f"{where}: {before} → {count} workers" + (f" ({change})" if change else "")
            hands.applied(text, Kind.NUMERIC if change else None)
            iterator = make(loader) if before else start.make(make, loader)
            if marks.began(loader, iterator) and has_generator(loader._index_sampler):
                broken = "epochs are broken off, and its generator has been read ahead"
                hands.applied(f"{where}: other shuffles ({broken})", Kind.NUMERIC)
            return iterator

        marks.watch(decide)
        hands.seams.loader_iterated(iterated)

    def explain(self, error: BaseException, line: str) -> str | None:
        text = f"{type(error).__name__}: {error}"
        for part, reason in _FAILURES.items():
            if part in text and (part != "pickle" or get_start_method(allow_none=True) != "fork"):
                return reason
        return None

    def edit(self, value: Any, line: str) -> Edit:
        count = str(value or usual_workers())
        changed = with_arguments(line, "DataLoader", {"num_workers": count})
        return Edit(f"pass num_workers={count} to the DataLoader", changed)


def usual_workers() -> int:
    """One processor is left for the training loop."""
    return max(1, min(_MOST, allowed_cpus() - 1))


def _unfit(arguments: dict[str, Any]) -> str | None:
    """Why workers cannot make this loader's batches."""
    from torch.utils.data import IterableDataset

    dataset = arguments.get("dataset")
    seen = look(dataset, arguments.get("collate_fn"))
    if seen.cuda is not None:
        return f"its dataset {seen.cuda}; keep its samples on the CPU"
    if seen.handle is not None:
        return f"its dataset holds {seen.handle}; open it at the first sample instead"
    if isinstance(dataset, IterableDataset) and not _splits(dataset, arguments):
        return (
            "each worker would give all the data of its IterableDataset; have it ask"
            " torch.utils.data.get_worker_info() for its share"
        )
    return None


def _splits(dataset: Any, arguments: dict[str, Any]) -> bool:
    if type(dataset).__module__.startswith("datasets."):
        return True
    return look(dataset, arguments.get("worker_init_fn")).splits


def _change(loader: Any, before: int) -> str | None:
    """What batches from more workers may have otherwise; None where nothing."""
    from torch.utils.data import IterableDataset

    if isinstance(loader.dataset, IterableDataset):
        return "samples come in another order"
    seen = look(loader.dataset, loader.collate_fn)
    if reason := seen.varies():
        return reason
    if seen.splits:
        return "perhaps other samples: the dataset asks which worker it runs in"
    if seen.sums and not before:
        return f"perhaps other rounding: {seen.sums} runs on one thread in a worker"
    return draws_as_it_goes(loader._index_sampler)


FIX = Workers()
