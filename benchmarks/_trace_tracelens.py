"""AMD's TraceLens as a contender, by its nearest equivalents.

Not the unrelated package that bears the name in lower case.
"""

import importlib
from pathlib import Path
from typing import Any


class TraceLens:
    """Making it imports TraceLens."""

    packages = ("TraceLens", "pandas")

    def __init__(self) -> None:
        self._analyzer = importlib.import_module("TraceLens.TreePerf").TreePerfAnalyzer

    def load(self, path: Path) -> Any:
        """Its tree of events, without Python functions."""
        return self._analyzer.from_file(str(path), add_python_func=False)

    def analyse(self, loaded: Any) -> dict[str, Any]:
        """Device timeline (with idle time) and the table of what launched kernels."""
        times = loaded.get_df_gpu_timeline().set_index("type")["time ms"]
        launchers = loaded.get_df_kernel_launchers()
        loaded.get_df_kernel_launchers_summary(launchers)
        return {
            "compute_ms": float(times["computation_time"]),
            "busy_ms": float(times["busy_time"]),
            "idle_ms": float(times["idle_time"]),
        }
