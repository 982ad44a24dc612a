"""Whole studies of one model. `STUDIES` is the one list of them."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stepscope.bench.grid import BenchRequest
    from stepscope.bench.results import CpuGpuStudy, MemoryStudy
    from stepscope.bench.studies.measurements import Tell

STUDIES: Final = {
    "cpu-gpu": "stepscope.bench.studies.cpu_gpu",
    "memory": "stepscope.bench.studies.memory",
}
"""The module of each; its `run` makes the study."""


def run_study(request: "BenchRequest", folder: Path, tell: "Tell") -> "CpuGpuStudy | MemoryStudy":
    """The study a request names."""
    assert request.study is not None
    study: CpuGpuStudy | MemoryStudy = import_module(STUDIES[request.study]).run(
        request, folder, tell
    )
    return study
