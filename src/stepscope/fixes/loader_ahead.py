"""Batches fetched one ahead, with an error or the end of the data kept for its own batch."""

from collections.abc import Callable
from typing import Any, Final

_NOTHING: Final = object()


class Ahead:
    """What one iterator holds of the batch after the one handed out."""

    def __init__(self) -> None:
        self._batch: Any = _NOTHING
        self._error: Exception | None = None

    def next(self, fetch: Callable[[], Any], prepare: Callable[[Any], None]) -> Any:
        """The next batch, prepared, as is the one after it. Raises what `fetch` raises."""
        batch, error = self._batch, self._error
        self._batch, self._error = _NOTHING, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame, which would keep the iterator alive
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
