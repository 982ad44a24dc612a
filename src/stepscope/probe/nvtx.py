"""Marks for Nsight Systems: a range per step, and one per phase inside it."""

from typing import Any

from stepscope.probe.core import Core
from stepscope.probe.log import LEAVE, LEAVE_TAIL
from stepscope.record.rows import Phase


class _Marked(list[int]):
    """The log's events, each phase a range. Codes stand at even places, times at odd ones."""

    def __init__(self, nvtx: Any) -> None:
        super().__init__()
        self._nvtx = nvtx

    def append(self, value: int) -> None:
        if len(self) % 2 == 0:
            self._mark(value)
        super().append(value)

    def __iadd__(self, pair: Any) -> "_Marked":  # type: ignore[override,misc]
        self._mark(pair[0])
        super().extend(pair)
        return self

    def _mark(self, code: int) -> None:
        if code >= 0:
            self._nvtx.range_push(Phase(code).name.lower())
        elif code in (LEAVE, LEAVE_TAIL):
            self._nvtx.range_pop()


def mark_phases(core: Core) -> None:
    """Have NVTX ranges follow the phases; before any point is in place.

    Raises RuntimeError without CUDA.
    """
    from torch.cuda import nvtx

    nvtx.range_push("step 1")
    core.log.events = _Marked(nvtx)

    def step_ended(step: int) -> int:
        nvtx.range_pop()
        nvtx.range_push(f"step {step + 1}")
        return step + 1

    core.on_step.append(step_ended)
