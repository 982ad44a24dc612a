"""Drop `torch.cuda.synchronize` in the training loop."""

import linecache
import re
from types import CodeType, FrameType
from typing import Any

from stepscope.fixes.base import Edit, Fix, Hands, Kind
from stepscope.fixes.lazy_callers import users_caller
from stepscope.fixes.lazy_hazards import other_cuda_users, watch

_WATCHED_STEPS = 3
"""Steps in which nothing is dropped yet: what a loop does in every step is seen in them."""
_CLOCK = re.compile(r"\b(perf_counter|monotonic|process_time|time\.time|time\(\)|timeit)")


class NoSync(Fix):
    """The host goes on preparing work while the device computes."""

    name = "nosync"
    group = "waiting"
    title = "drop torch.cuda.synchronize in the training loop"
    kind = Kind.EXACT
    effort = "one line removed"
    needs = "cuda"
    missing = "the program's own loop never calls torch.cuda.synchronize"

    def install(self, value: Any, hands: Hands) -> None:
        import torch

        if not torch.cuda.device_count():
            hands.unfit("there is no CUDA device here")
            return
        _Dropping(hands).install()

    def edit(self, value: Any, line: str) -> Edit:
        return Edit("delete torch.cuda.synchronize() from the loop", "")


class _Dropping:
    """Which synchronisations are dropped, until one is found to matter."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._needed = False
        self._dropped = False
        self._said: set[tuple[CodeType, int]] = set()
        self._synchronize: Any = None

    def install(self) -> None:
        import torch

        self._synchronize = torch.cuda.synchronize
        self._hands.seams.synchronised(self._synchronised)
        self._hands.seams.around(torch.cuda.Event, "elapsed_time", self._elapsed)
        watch(self._hands, self._found)

    def _synchronised(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        if self._needed or self._hands.seams.core.steps < _WATCHED_STEPS:
            return call(*args, **kwargs)
        frame = users_caller(__file__)
        if frame is None:
            return call(*args, **kwargs)
        other = other_cuda_users()
        if other is not None:
            self._found(f"{other}, which uses the device on its own,")
            return call(*args, **kwargs)
        self._dropped = True
        self._say(frame)
        return None

    def _elapsed(self, call: Any, start: Any, end: Any) -> Any:
        """Times between events can be asked for once both are over."""
        if self._dropped:
            start.synchronize()
            end.synchronize()
        return call(start, end)

    def _found(self, what: str) -> None:
        """From now on nothing is dropped; what was is made up for."""
        if self._needed:
            return
        self._needed = True
        self._hands.unfit(f"{what} may depend on torch.cuda.synchronize, so it stays")
        if self._dropped:
            self._synchronize()

    def _say(self, frame: FrameType) -> None:
        site = (frame.f_code, frame.f_lineno)
        if site in self._said:
            return
        self._said.add(site)
        text = f"torch.cuda.synchronize at {self._hands.place()}"
        if _times_itself(frame.f_code.co_filename, frame.f_lineno):
            text += "; times the program takes there no longer wait for the device"
        self._hands.applied(text)


def _times_itself(file: str, line: int) -> bool:
    """Whether the program reads a clock just beside a line."""
    near = (linecache.getline(file, number) for number in range(line - 2, line + 3))
    return any(_CLOCK.search(text) for text in near)


FIX = NoSync()
