"""`stepscope analyze` as a contender: the whole command, by phase."""

import io
import time
from pathlib import Path
from typing import Any

from stepscope.report.render.terminal.story import print_story
from stepscope.report.story.narrator import screen_of
from stepscope.results.load import Ranks, Trace, load_traces


class Command:
    """Importing this module imports what the command does before it reads."""

    packages = ("numpy", "msgspec", "isal", "rich")

    def load(self, path: Path) -> Trace | Ranks:
        """The recording, as the command opens it."""
        return load_traces([path])

    def analyse(self, trace: Trace) -> dict[str, Any]:
        """Everything the command does after it has read, with the seconds of each phase."""
        clock = [time.perf_counter()]
        analysis = trace.analysis
        clock.append(time.perf_counter())
        _ = trace.document
        clock.append(time.perf_counter())
        print_story(screen_of(trace), io.StringIO())
        clock.append(time.perf_counter())
        names = ("analyse", "findings", "print")
        whole = [device.whole_ns for device in analysis.devices]
        return {
            "phases_s": {name: clock[n + 1] - clock[n] for n, name in enumerate(names)},
            "device_events": len(trace.recording.device),
            "compute_ms": sum(one.compute for one in whole) / 1e6,
            "busy_ms": sum(one.wall - one.idle for one in whole) / 1e6,
        }
