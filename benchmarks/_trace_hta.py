"""HTA (traceinsight, formerly HolisticTraceAnalysis) as a contender.

With its last step, which it leaves out unless asked, so that it does the same work as the others.
"""

import importlib
import logging
import warnings
from pathlib import Path
from typing import Any


class Hta:
    """Making it imports HTA."""

    packages = ("traceinsight", "HolisticTraceAnalysis", "pandas")

    def __init__(self) -> None:
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")
        self._analysis = importlib.import_module("hta.trace_analysis").TraceAnalysis

    def load(self, path: Path) -> Any:
        """HTA's table of events."""
        return self._analysis(trace_files={0: str(path)}, include_last_profiler_step=True)

    def analyse(self, loaded: Any) -> dict[str, Any]:
        """Temporal breakdown, kernel breakdown and idle time breakdown, without its plots."""
        times = loaded.get_temporal_breakdown(visualize=False).iloc[0]
        _, kernels = loaded.get_gpu_kernel_breakdown(visualize=False)
        loaded.get_idle_time_breakdown(ranks=[0], visualize=False)
        return {
            "device_events": int(loaded.t.get_trace(0)["stream"].ne(-1).sum()),
            "kernel_names": len(kernels),
            "compute_ms": float(times["compute_time(us)"]) / 1000,
            "busy_ms": float(times["kernel_time(us)"] - times["idle_time(us)"]) / 1000,
            "idle_ms": float(times["idle_time(us)"]) / 1000,
        }
