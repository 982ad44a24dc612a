"""stepscope as a contender."""

from pathlib import Path
from typing import Any

from stepscope.analyze.timeline.attribution import attribute
from stepscope.analyze.timeline.idle import explain_idle
from stepscope.analyze.timeline.kernels import kernel_table
from stepscope.analyze.timeline.steps import break_down, find_steps
from stepscope.record.timeline import Timeline
from stepscope.trace.kineto.read import read_kineto


class Stepscope:
    """Importing this module imports stepscope."""

    packages = ("numpy", "msgspec", "isal")

    def load(self, path: Path) -> Timeline:
        """The timeline."""
        return read_kineto(path)

    def analyse(self, timeline: Timeline) -> dict[str, Any]:
        """Breakdown, idle time by cause, and the kernel table."""
        steps = find_steps(timeline)
        whole = [device.whole for device in break_down(timeline, steps)]
        explain_idle(timeline, steps)
        kernels = kernel_table(timeline, attribute(timeline))
        return {
            "device_events": len(timeline.device),
            "kernel_names": len({kernel.name for kernel in kernels}),
            "steps": len(steps.steps),
            "compute_ms": sum(one.compute for one in whole) / 1e6,
            "busy_ms": sum(one.wall - one.idle for one in whole) / 1e6,
            "idle_ms": sum(one.idle for one in whole) / 1e6,
        }
