"""Which batch sizes to try, in what order and how often, within which bounds, and why the search
stops."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msgspec import Struct

from stepscope.batch.sizes import (
    MeasuredSizes,
    SizeMeasurement,
    SizeResult,
    knee_size,
    largest_by_memory,
    predicted_bytes,
    with_headroom,
)
from stepscope.record.trial import TrialReason, TrialStatus

_LARGEST_FIX_VALUE: Final = 999_999  # the largest N of `--fix batch=N`


@dataclass(frozen=True, slots=True)
class SearchBounds:
    """The limits of a search. None: no limit, or unknown."""

    start: int  # the first batch size: the program's own
    smallest: int | None = None  # sizes below `start` are tried down to this
    largest: int | None = None
    samples: int | None = None  # in an epoch: no batch is larger
    memory_bytes: float | None = None  # available to the program
    fills: bool = False
    """Whether memory may be filled completely: on a GPU that costs one process at most."""
    headroom: float = 0.10
    within: float = 0.05
    budget_s: float | None = None  # total seconds of processes: none starts that should end later
    longest_s: float | None = None  # seconds of one process that only looks for the largest batch


class StopKind(StrEnum):
    """What stopped the growth."""

    MEMORY = "memory"  # `batch` ran out of memory, or is predicted to
    ROOM = "room"  # `batch` would take `share` of the free memory
    FAILURE = "failure"
    FLAT = "flat"  # throughput hardly grows beyond `batch`
    FALLS = "falls"  # `batch` is slower than `than`
    LIMIT = "limit"
    EPOCH = "epoch"  # `batch` exceeds the `than` samples of an epoch
    SHORT = "short"
    BUDGET = "budget"
    INTERRUPTED = "interrupted"


class SearchStop(Struct, frozen=True, omit_defaults=True):
    """What stopped the growth, and the sizes involved."""

    kind: StopKind
    batch: int | None = None
    than: int | None = None
    share: float | None = None
    tried: bool = False  # whether `batch` was tried
    status: TrialStatus | None = None  # of the failed size, with `reason` and `detail`
    reason: TrialReason | None = None
    detail: str | None = None
    steps: int | None = None


class BatchNoteKind(StrEnum):
    """What a search left open."""

    NO_TIME = "no_time"  # no time was left for `batch`
    FITS_SLOW = "fits_slow"  # about `batch` should fit; it would take too long to try
    FITS_NO_TIME = "fits_no_time"  # about `batch` should fit; no time was left to try
    MEASURED_ONCE = "measured_once"  # no time was left for second processes
    NOISY = "noisy"  # processes of one size differ by `share`


class BatchNote(Struct, frozen=True, omit_defaults=True):
    """One thing that a search left open."""

    kind: BatchNoteKind
    batch: int | None = None
    share: float | None = None


FULL: Final = 0.95  # of a GPU's memory can hold tensors: contexts and gaps take the rest
_FINE: Final = 16  # the answer is exact to one part in this many
_MULTIPLE: Final = 8


def _next_largest(sizes: MeasuredSizes, bounds: SearchBounds) -> int | None:
    """The next size to try: the largest predicted to fit, or halfway to one that did not. None once
    the largest is known to one part in 16."""
    good, bad = sizes.largest, sizes.too_large
    if good is None:
        return None
    fine = max(_MULTIPLE, good // _FINE)
    if bad is not None and bad - good <= fine:
        return None
    memory = bounds.memory_bytes
    batch = largest_by_memory(sizes.points, FULL * memory) if memory is not None else None
    if bad is not None and (batch is None or not good < batch < bad - fine // 2):
        batch = (good + bad) // 2
    if batch is None:
        return None
    batch = min(batch, bounds.largest or batch, bounds.samples or batch, _LARGEST_FIX_VALUE)
    batch = batch // _MULTIPLE * _MULTIPLE
    near = bad is None and batch - good <= fine
    return None if near or not good < batch < (bad or batch + 1) else batch


MeasureSize = Callable[[int, float | None], SizeMeasurement]
"""Measures a batch size in a fresh process. The second argument is the expected step time in ms;
None: unknown."""

GROWTH: Final = 0.02  # a smaller gain from doubling the batch is no growth
FALLS: Final = 0.05  # a larger drop is not noise
_FILLS: Final = 4
_ROUNDS: Final = 4
_MARGIN: Final = 0.08  # below the knee's throughput: a second process may change the order


class BatchSearch:
    """Doubles from the start, finds the largest that fits, and confirms the knee."""

    def __init__(
        self, measure: MeasureSize, bounds: SearchBounds, known: SizeMeasurement | None = None
    ) -> None:
        """`known`: an earlier measurement, such as the baseline's."""
        self.sizes = MeasuredSizes()
        self.stop: SearchStop | None = None
        self.notes: list[BatchNote] = []
        self._bounds = bounds
        self._measure = measure
        self._compared = [bounds.start]
        if known is not None:
            self.sizes.add(known)
            self._compared.append(known.batch)

    def run(self) -> None:
        """Run the whole search; the result is in `sizes` and `stop`."""
        start = self._bounds.start
        if not self.sizes.of(start):
            self._try(start)
        if self.sizes.fits(start):
            self._grow(start)
        else:
            self.stop = _ended(self.sizes.of(start)[-1])
            if self.stop.kind is not StopKind.MEMORY:
                return
        self._shrink(start)
        self._fill()
        self._confirm()

    def roomy(self) -> list[SizeResult]:
        """The sizes that ran and keep the headroom, smallest first."""
        return with_headroom(self.sizes.points, self._bounds.memory_bytes, self._bounds.headroom)

    def _grow(self, batch: int) -> None:
        flat, level = 0, batch
        while (after := self._after(batch)) is not None:
            got = self._try(after)
            if got.ok and self._falls(level, after) and self._affordable(after):
                got = self._try(after)  # one slow process does not end it, nor a fast one before
                if len(self.sizes.of(level)) == 1:
                    self._try(level)
            for size in (after, level):
                if not self.sizes.fits(size):
                    self.stop = _ended(self.sizes.of(size)[-1])
                    return
            if self._falls(level, after):
                self.stop = SearchStop(StopKind.FALLS, after, level)
                return
            gain = self.sizes.rate(after) / self.sizes.rate(level) - 1
            flat = flat + 1 if gain < GROWTH else 0
            if flat == 2:
                self.stop = SearchStop(StopKind.FLAT, level)
                return
            batch, level = after, level if gain < GROWTH else after

    def _falls(self, level: int, after: int) -> bool:
        """Whether even the best process of a size is slower than a smaller one, beyond noise."""
        best = max(1e3 * len(one.sample_ms) / sum(one.sample_ms) for one in self.sizes.of(after))
        return best < (1 - FALLS) * self.sizes.rate(level)

    def _after(self, batch: int) -> int | None:
        """The next larger size: twice as large, or less while it is unknown whether that fits;
        None, with `stop` set, if there is none."""
        bounds, most = self._bounds, self._bounds.largest or _LARGEST_FIX_VALUE
        after, memory = min(2 * batch, most), self._bounds.memory_bytes
        if batch >= most:
            self.stop = SearchStop(StopKind.LIMIT, most)
            return None
        if bounds.samples is not None and after > bounds.samples:
            self.stop = SearchStop(StopKind.EPOCH, after, bounds.samples)
            return None
        if not self._affordable(after):
            self.stop = SearchStop(StopKind.BUDGET, after)
            return None
        used = max((one.memory_bytes or 0.0 for one in self.sizes.of(batch)), default=0.0)
        if memory is None or not used:
            return after
        limit = memory if bounds.fills else (1 - bounds.headroom) * memory
        expected = predicted_bytes(self.sizes.points, after)
        if expected is None and not bounds.fills and used * after / batch > limit:
            return min(after, batch + max(1, batch // 4))
        if expected is None or expected <= limit:
            return after
        if bounds.fills:
            self.stop = SearchStop(StopKind.MEMORY, after)
        else:
            self.stop = SearchStop(StopKind.ROOM, after, share=expected / memory)
        return None

    def _shrink(self, batch: int) -> None:
        """Go down from the start: as far as requested, or until something fits."""
        smallest = self._bounds.smallest or (batch if self.sizes.fits(batch) else 1)
        while batch // 2 >= smallest:
            best = max(one.samples_per_s or 0.0 for one in self.sizes.points)
            near_best = self.sizes.rate(batch) >= (1 - self._bounds.within) * best
            if self.sizes.fits(batch) and not near_best:
                return
            batch //= 2
            if not self._affordable(batch):
                self.notes.append(BatchNote(BatchNoteKind.NO_TIME, batch))
                return
            if self._try(batch).status not in (TrialStatus.OK, TrialStatus.OUT_OF_MEMORY):
                return

    def _fill(self) -> None:
        """Close in on the largest batch that fits."""
        ended = (StopKind.MEMORY, StopKind.FLAT, StopKind.FALLS)
        if not self._bounds.fills or self.stop is None or self.stop.kind not in ended:
            return
        for _ in range(_FILLS):
            batch = _next_largest(self.sizes, self._bounds)
            if batch is None:
                return
            longest = self._bounds.longest_s
            if longest is not None and self.sizes.cost_s(batch) > longest:
                self.notes.append(BatchNote(BatchNoteKind.FITS_SLOW, batch))
                return
            if not self._affordable(batch):
                self.notes.append(BatchNote(BatchNoteKind.FITS_NO_TIME, batch))
                return
            if self._try(batch).status not in (TrialStatus.OK, TrialStatus.OUT_OF_MEMORY):
                return

    def _confirm(self) -> None:
        """Run a second process of the knee, of smaller sizes nearly as good, and of those they are
        compared with: a single process does not show the noise."""
        for _ in range(_ROUNDS):
            fit = self.roomy()
            found = knee_size(fit, self._bounds.within)
            if found is None or found.samples_per_s is None:
                return
            near = (1 - _MARGIN) * found.samples_per_s
            smaller = [one for one in fit if one.batch < found.batch][-1:]
            wanted = [one.batch for one in smaller if (one.samples_per_s or 0.0) >= near]
            for batch in dict.fromkeys([*wanted, found.batch, *self._compared]):
                if len(self.sizes.of(batch)) != 1 or not self.sizes.fits(batch):
                    continue
                if not self._affordable(batch):
                    self.notes.append(BatchNote(BatchNoteKind.MEASURED_ONCE))
                    return
                self._try(batch)

    def _try(self, batch: int) -> SizeMeasurement:
        got = self._measure(batch, self.sizes.step_ms(batch))
        self.sizes.add(got)
        return got

    def _affordable(self, batch: int) -> bool:
        budget = self._bounds.budget_s
        return budget is None or self.sizes.seconds + self.sizes.cost_s(batch) <= budget


def _ended(got: SizeMeasurement) -> SearchStop:
    """Why no larger size is tried after this one."""
    kind = {
        TrialStatus.OUT_OF_MEMORY: StopKind.MEMORY,
        TrialStatus.TOO_SHORT: StopKind.SHORT,
        TrialStatus.NOT_APPLICABLE: StopKind.EPOCH,
    }.get(got.status, StopKind.FAILURE)
    return SearchStop(
        kind,
        got.batch,
        tried=True,
        status=got.status,
        reason=got.reason,
        detail=got.detail,
        steps=got.steps,
    )
