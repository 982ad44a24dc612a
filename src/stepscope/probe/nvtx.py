"""Marks for Nsight Systems: a range per step, and one per phase inside it."""

from stepscope.probe.core import Core
from stepscope.record.rows import Phase


def mark_phases(core: Core) -> None:
    """Push and pop NVTX ranges where phases begin and end. Raises RuntimeError without CUDA."""
    from torch.cuda import nvtx

    log = core.log
    enter, leave = log.enter, log.leave
    nvtx.range_push("step 1")

    def marked_enter(phase: int) -> int:
        begun = enter(phase)
        if begun:
            nvtx.range_push(Phase(phase).name.lower())
        return begun

    def marked_leave(depth: int, tail: bool = False) -> int:
        for _ in range(log.depth - depth):
            nvtx.range_pop()
        return leave(depth, tail)

    def step_ended(step: int) -> None:
        nvtx.range_pop()
        nvtx.range_push(f"step {step + 1}")

    log.enter = marked_enter  # type: ignore[method-assign]
    log.leave = marked_leave  # type: ignore[method-assign]
    core.on_step.append(step_ended)
