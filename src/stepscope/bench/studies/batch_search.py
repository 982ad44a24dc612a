"""The largest batch that works: doubled until one does not, then halved in between."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Try = Callable[[int], Mapping[str, Any]]
"""Tries a batch; gives at least `status` and `seconds`."""

_FINE: Final = 16
"""The answer is known to one part in so many."""


@dataclass(frozen=True, slots=True)
class Found:
    """`batch` is the largest that worked, None if none did; `too_large` the smallest that did not.

    `bound` says what ended the search: "memory", "limit", "time" or "failure".
    """

    batch: int | None
    too_large: int | None
    bound: str
    why: str | None = None
    tries: list[dict[str, Any]] = field(default_factory=list)


def largest_batch(start: int, limit: int, seconds: float, attempt: Try, step: int = 1) -> Found:
    """Search from `start` up (down if even that is too much), in multiples of `step`.

    `limit` is the largest batch to try; no try begins that would end after so many seconds, going
    by how the last one grew.
    """
    search = _Search(limit, seconds, attempt, step)
    batch = search.rounded(min(start, limit))
    while search.bound is None:
        if search.fits(batch):
            if batch >= search.rounded(limit):
                search.bound = "limit"
            batch = min(2 * batch, search.rounded(limit))
        else:
            break
    search.halve()
    return Found(search.good, search.bad, search.bound or "memory", search.why, search.tries)


class _Search:
    def __init__(self, limit: int, seconds: float, attempt: Try, step: int) -> None:
        self.good: int | None = None
        self.bad: int | None = None
        self.bound: str | None = None
        self.why: str | None = None
        self.tries: list[dict[str, Any]] = []
        self._left = seconds
        self._attempt = attempt
        self._step = step

    def rounded(self, batch: int) -> int:
        """The nearest multiple of the step that is not more, one step at least."""
        return max(1, batch // self._step) * self._step

    def fits(self, batch: int) -> bool:
        """Whether a batch works. One that ends otherwise than by memory ends the search."""
        last = self.tries[-1] if self.tries else None
        if last is not None and last["seconds"] * max(1.0, batch / last["batch"]) > self._left:
            self.bound = "time"
            return False
        told = self._attempt(batch)
        self.tries.append({"batch": batch, **told})
        self._left -= told["seconds"]
        if told["status"] == "ok":
            self.good = batch
            return True
        if told["status"] == "out_of_memory":
            self.bad = batch
        else:
            self.bound = "time" if told["status"] == "timed_out" else "failure"
            self.why = told.get("why")
        return False

    def halve(self) -> None:
        """Close in between the largest that worked and the smallest that did not."""
        while self.bound is None and self.bad is not None:
            low = self.good or 0
            middle = self.rounded((low + self.bad) // 2)
            if not low < middle < self.bad or self.bad - low <= low // _FINE:
                return
            self.fits(middle)
