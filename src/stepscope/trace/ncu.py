"""Nsight Compute: hardware counters of kernels from `ncu --csv --page raw`.

Record them with

    ncu --target-processes all --clock-control none --metrics LIST --csv --page raw
        --print-units base --log-file counters.csv python train.py

where LIST is METRICS joined by commas; `--kernel-name regex:…`, `--launch-skip N` and
`--launch-count N` choose kernels, each of which is run several times over.
"""

import re
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from stepscope.trace.ncu_csv import Row, read_rows
from stepscope.trace.ncu_flops import SCALAR, scalar_flops, tensor_flops
from stepscope.trace.ncu_numbers import has_decimal_comma, number, scale
from stepscope.trace.nsys_report import run_tool
from stepscope.trace.nsys_tables import UnreadableReport

_DURATION = "gpu__time_duration"
_SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
_DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
_OTHER_DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
_OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
_TENSOR_PIPE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"

# Tensor operations by source type are those of compute capability 9.0. Before it, fp16 is split
# by what it accumulates in (src_fp16_dst_fp16 and src_fp16_dst_fp32) and there is no fp8.
METRICS = (
    f"{_DURATION}.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    _SM,
    _DRAM,
    _OCCUPANCY,
    _TENSOR_PIPE,
    *SCALAR,
    "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
    "sm__ops_path_tensor_src_fp16.sum",
    "sm__ops_path_tensor_src_tf32_dst_fp32.sum",
    "sm__ops_path_tensor_src_fp8.sum",
    "sm__ops_path_tensor_src_fp64.sum",
)
_CALIBRATION_ROWS = 200
_MISSING = (
    "ncu is not installed here: print the counters where it is, with "
    "`ncu --import FILE --csv --page raw`, and use the .csv"
)


@dataclass(frozen=True, slots=True)
class Counters:
    """What was counted in one launch of a kernel.

    `metrics` are in base units: bytes, ns, counts, each per second, percent as printed.
    """

    kernel: str
    id: int  # counts the kernels of a recording
    stream: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    duration_ns: float | None  # under the profiler, whose clocks may not be those of a plain run
    metrics: dict[str, float] = field(repr=False)

    @property
    def dram_bytes(self) -> float | None:
        """Read from and written to device memory."""
        if (both := self.metrics.get("dram__bytes.sum")) is not None:
            return both
        read, written = (self.metrics.get(f"dram__bytes_{way}.sum") for way in ("read", "write"))
        return None if read is None or written is None else read + written

    @property
    def tensor_flops(self) -> float | None:
        """Floating-point operations on tensor cores."""
        return tensor_flops(self.metrics)

    @property
    def flops(self) -> float | None:
        """All floating-point operations; None unless those on and off tensor cores are known."""
        on, off = tensor_flops(self.metrics), scalar_flops(self.metrics)
        return None if on is None or off is None else on + off

    @property
    def sm_share(self) -> float | None:
        """Of the busiest part of a multiprocessor's peak rate, 0 to 1."""
        return self._share(_SM)

    @property
    def dram_share(self) -> float | None:
        """Of the device memory's peak rate, 0 to 1."""
        return self._share(_DRAM, _OTHER_DRAM)

    @property
    def occupancy(self) -> float | None:
        """Warps active, as a share of the most that fit, 0 to 1."""
        return self._share(_OCCUPANCY)

    @property
    def tensor_share(self) -> float | None:
        """Of the time the tensor pipe was busy, 0 to 1."""
        return self._share(_TENSOR_PIPE, _TENSOR_PIPE.replace("elapsed", "active"))

    def _share(self, *names: str) -> float | None:
        return next((self.metrics[name] / 100 for name in names if name in self.metrics), None)


def read_ncu(path: Path) -> list[Counters]:
    """The counters of a CSV file, or of a `.ncu-rep` through ncu. Raises UnreadableReport."""
    if path.suffix != ".ncu-rep":
        return _read_csv(path)
    if not path.is_file():
        raise UnreadableReport(f"{path}: there is no such file")
    with TemporaryDirectory(prefix="stepscope-") as folder:
        printed = Path(folder) / "counters.csv"
        arguments = ["--import", str(path.resolve()), "--csv", "--page", "raw"]
        run_tool("ncu", [*arguments, "--print-units", "base"], _MISSING, path, printed)
        return _read_csv(printed)


def _read_csv(path: Path) -> list[Counters]:
    rows = read_rows(path)
    sample = list(islice(rows, _CALIBRATION_ROWS))
    numbers = (cell for row in sample for name, cell in row.cells.items() if "__" in name)
    # A file that needs another mark between its cells has the comma inside its numbers.
    comma = has_decimal_comma(numbers, default=bool(sample) and sample[0].delimiter == ";")
    return [_counters(row, comma) for row in chain(sample, rows)]


def _counters(row: Row, decimal_comma: bool) -> Counters:
    cells = row.cells
    values = {
        name: (number(cell, decimal_comma), row.units.get(name, ""))
        for name, cell in cells.items()
        if "__" in name
    }
    metrics = {name: v * scale(unit) for name, (v, unit) in values.items() if v is not None}
    return Counters(
        kernel=cells["Kernel Name"],
        id=int(cells["ID"]),
        stream=cells.get("Stream", ""),
        grid=_size(cells.get("Grid Size", ""), metrics, "launch__grid_dim_"),
        block=_size(cells.get("Block Size", ""), metrics, "launch__block_dim_"),
        duration_ns=metrics.get(f"{_DURATION}.sum", metrics.get(f"{_DURATION}.avg")),
        metrics=metrics,
    )


def _size(cell: str, metrics: dict[str, float], prefix: str) -> tuple[int, ...] | None:
    written = tuple(int(part) for part in re.findall(r"\d{1,10}", cell))
    if len(written) == 3:
        return written
    counted = [metrics.get(prefix + axis) for axis in "xyz"]
    return None if None in counted else tuple(int(value or 0) for value in counted)
