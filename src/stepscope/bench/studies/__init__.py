"""In-depth studies of one model, listed in `STUDIES`."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stepscope.bench.grid import BenchRequest
    from stepscope.bench.record import Tell
    from stepscope.bench.results import CpuGpuStudy, MemoryStudy

STUDIES: Final = {
    "cpu-gpu": "stepscope.bench.studies.cpu_gpu",
    "memory": "stepscope.bench.studies.memory",
}
"""Each study's module; its `run` makes the study."""


def run_study(request: "BenchRequest", folder: Path, tell: "Tell") -> "CpuGpuStudy | MemoryStudy":
    assert request.study is not None
    run = import_module(STUDIES[request.study]).run
    study: CpuGpuStudy | MemoryStudy = run(request, folder, tell)
    return study
