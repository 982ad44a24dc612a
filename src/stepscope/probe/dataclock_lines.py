"""Following one fetch line by line, in the files the dataset's code stands in.

The time until the next line event goes to the line, with all it calls, except what belongs to a
followed line further in, to a timed transform or, outside followed files, to torch's collate.
"""

from threading import get_ident
from time import perf_counter_ns
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.probe.dataclock import DataClock
    from stepscope.probe.dataclock_source import Source


class LineTracer:
    """The trace function of one fetch."""

    def __init__(self, clock: "DataClock", source: "Source") -> None:
        self._clock = clock
        self._watch = clock.watch
        self._source = source
        self._files = source.files
        self._transform = source.traced_transform

    def on_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        """A frame begins or goes on; the tracer of its lines, None if it is not followed."""
        file = frame.f_code.co_filename
        if file not in self._files:
            return None
        try:
            stack = self._charge()
            if stack is None or stack[-1] == self._transform:
                return None
            stack.append(self._slot(file, frame.f_lineno))
            self._watch.last_ns = perf_counter_ns()
            return self._on_line
        except Exception:
            self._clock.switch_off()
            return None

    def transform_called(self, slot: int) -> int:
        """A timed transform is called; the slot its time goes to."""
        watch = self._watch
        if watch.stack is not None and watch.thread == get_ident():
            self._source.transform_called(slot, watch.stack)
        return self._transform

    def _on_line(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            stack = self._charge()
            if stack is None:
                return None
            if event == "line":
                stack[-1] = slot = self._slot(frame.f_code.co_filename, frame.f_lineno)
                self._watch.sums[slot - 1] += 1
            elif event == "return":
                if len(stack) > 1:
                    stack.pop()
                frame.f_trace = None
            self._watch.last_ns = perf_counter_ns()
            return self._on_line
        except Exception:
            self._clock.switch_off()
            return None

    def _slot(self, file: str, line: int) -> int:
        return self._source.line_slot(file, line, self._watch.samples is not None)

    def _charge(self) -> list[int] | None:
        watch = self._watch
        stack = watch.stack
        if stack is not None and watch.tracer is self:
            watch.sums[stack[-1]] += perf_counter_ns() - watch.last_ns
            return stack
        return None
