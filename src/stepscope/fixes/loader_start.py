"""Iterators with workers that draw from the program's generator when one without would.

Every iterator draws a base seed when it is made. Without workers the sampler's own seed follows
with the first batch; with workers it follows at once, since indices are sent ahead. In between a
program may draw, or make another iterator: `zip(one, other)`.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from stepscope.fixes.loader_marks import Marks


class LateStart:
    """Has the first indices of an epoch sent with its first batch."""

    def __init__(self, marks: Marks) -> None:
        from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as Iterator

        self._marks = marks
        self._waiting: WeakSet[Any] = WeakSet()
        self._making = False
        marks.hands.seams.around(Iterator, "_try_put_index", self._put)
        marks.hands.seams.around(Iterator, "_next_data", self._next)

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
        try:
            return call(iterator)
        except StopIteration:
            self._marks.ended(iterator)
            raise
