"""Whole studies of one model. `STUDIES` is the one list of them."""

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
"""The module of each; its `run` makes the study."""


def run_study(request: "BenchRequest", folder: Path, tell: "Tell") -> "CpuGpuStudy | MemoryStudy":
    assert request.study is not None
    run = import_module(STUDIES[request.study]).run
    study: CpuGpuStudy | MemoryStudy = run(request, folder, tell)
    return study
