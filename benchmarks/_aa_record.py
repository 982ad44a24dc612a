"""Step times of the same programs in many processes, as `stepscope run` observes them."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

Series = npt.NDArray[np.float32]
LONGEST = 200  # steps kept of a process: the last ones
PROGRAMS: dict[str, list[str]] = {
    "mlp": ["train", "--model", "mlp", "--batch", "8", "--steps", "150"],
    "cnn": ["train", "--model", "simple_cnn", "--size", "16", "--batch", "8", "--steps", "120"],
    "worker": [
        "train", "--model", "mlp", "--batch", "8", "--steps", "120", "--samples", "8192",
        "--workers", "1", "--decode-ms", "0.5",
    ],
    "inference": [
        "infer", "--model", "simple_cnn", "--size", "16", "--batch", "8", "--steps", "200",
    ],
}  # fmt: skip
"""By name: a built-in workload's module and arguments."""


def recorded(processes: int, device: str) -> Iterator[tuple[str, Series]]:
    """The programs in turn, so that slow changes of the machine meet them alike."""
    for number in range(1, processes + 1):
        for name in PROGRAMS:
            begun = time.monotonic()
            series = observed(name, device)
            took = time.monotonic() - begun
            print(f"{name} {number}/{processes}: {took:.0f} s", file=sys.stderr, flush=True)
            yield name, series


def observed(name: str, device: str) -> Series:
    """The steady step times of one process, in ms, as `compare` reads them from its run folder."""
    from stepscope.compare.open_sides import run_series

    module, *arguments = PROGRAMS[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        command = [sys.executable, "-m", "stepscope.cli.main", "run", "--quiet", "--no-window"]
        command += ["--out", str(folder), "-m", f"stepscope.workloads.{module}", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [*command, "--device", device],
            check=True, env=environment, cwd=place, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return np.array(run_series(folder)[-LONGEST:], dtype=np.float32)
