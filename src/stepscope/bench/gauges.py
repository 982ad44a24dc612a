"""What is read of the whole machine while a point is measured, beside the sampler's own table."""

import time
from dataclasses import dataclass, field

from stepscope.hardware.rapl import Rapl


@dataclass(slots=True)
class Gauges:
    """Running totals about ten times a second: times in CLOCK_MONOTONIC nanoseconds, seconds of
    processor time that anybody on the machine has used, joules of the processors (None: unread)."""

    t_ns: list[int] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    host_j: list[float | None] = field(default_factory=list)
    _rapl: Rapl = field(default_factory=Rapl)

    def read(self) -> None:
        """Take all once."""
        import psutil

        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        doubled = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        self.t_ns.append(time.monotonic_ns())
        self.busy_s.append(sum(times) - idle - doubled)
        self.host_j.append(self._rapl.joules())
