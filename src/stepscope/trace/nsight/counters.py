"""Nsight Compute: hardware counters of kernels from `ncu --csv --page raw`, in any locale.

Record them with

`ncu --target-processes all --clock-control none --metrics LIST --csv --page raw --print-units
base --log-file counters.csv python train.py`

where LIST is METRICS joined by commas; `--kernel-name regex:…`, `--launch-skip N` and `--launch-
count N` choose kernels, each of which is run several times over.
"""

import csv
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from stepscope.trace.limits import check_file
from stepscope.trace.nsight.sqlite_export import UnreadableReport, run_nvidia_tool

_SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
_WEIGHTS = {"add": 1, "mul": 1, "fma": 2}

# Operations for each instruction of a thread. Half-precision instructions work on two values;
# so do the paired fp32 ones (fadd2 …) that exist from compute capability 10 on.
_SCALAR = {
    _SASS.format(kind + operation): weight * (2 if kind == "h" else 1)
    for kind, (operation, weight) in product("fdh", _WEIGHTS.items())
}
_PAIRED = {_SASS.format(f"f{name}2"): 2 * weight for name, weight in _WEIGHTS.items()}
_PER_INSTRUCTION = _SCALAR | _PAIRED
_SINGLE = [_SASS.format("f" + operation) for operation in _WEIGHTS]

_TENSOR = re.compile(
    r"sm__ops_path_tensor(?:_op_(?P<op>[a-z]+))?_src_(?P<src>\w+?)(?:_dst_(?P<dst>[a-z0-9]+))?"
    r"(?:_sparsity_(?P<sparsity>on|off))?\.sum"
)
_PIPE = "sm__inst_executed_pipe_tensor.sum"


def _covers(general: re.Match[str], special: re.Match[str]) -> bool:
    return set(special["src"].split("_")) <= set(general["src"].split("_")) and all(
        general[part] in (None, special[part]) for part in ("op", "dst", "sparsity")
    )


# By whether the comma marks decimals.
_GROUPS = {
    False: re.compile(r"[+-]?([1-9]\d{0,2}(,\d{3})+|\d+)(\.\d+)?([eE][+-]?\d+)?"),
    True: re.compile(r"[+-]?([1-9]\d{0,2}(\.\d{3})+|\d+)(,\d+)?([eE][+-]?\d+)?"),
}
_SPACES = str.maketrans("", "", " \u00a0\u202f\u2009'’")  # other locales' thousands marks
_NUMBER = re.compile(r"[+-]?\d[\d.,]*([eE][+-]?\d+)?")
_TIMES_NS = {
    prefix + unit: ns
    for prefix, ns in (("n", 1.0), ("u", 1e3), ("m", 1e6), ("", 1e9))
    for unit in ("s", "second")
}
_PREFIXES = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_COUNTED = {"byte", "inst", "hz", "cycle", "sector", "request", "thread", "warp", "block", "ops"}


def has_decimal_comma(cells: Iterable[str], default: bool) -> bool:
    """Whether `,` marks decimals in a file, by what its numbers can only mean.

    Most say nothing ("1,234"); "62,50" and "1.234,5" do. `default` where none does.
    """
    votes = 0
    for cell in cells:
        text = cell.translate(_SPACES)
        if _NUMBER.fullmatch(text):
            votes += bool(_GROUPS[True].fullmatch(text)) - bool(_GROUPS[False].fullmatch(text))
    return votes > 0 if votes else default


def parse_number(cell: str, decimal_comma: bool) -> float | None:
    """The number in a cell, None where there is none or it is too large."""
    text = cell.translate(_SPACES)
    if not _GROUPS[decimal_comma].fullmatch(text):
        return None
    thousands, decimal = (".", ",") if decimal_comma else (",", ".")
    value = float(text.replace(thousands, "").replace(decimal, "."))
    return value if math.isfinite(value) else None


def unit_scale(unit: str) -> float:
    """What to multiply by for bytes, counts, ns, and each per second: 1e9 for "Gbyte/second"."""
    above, _, below = unit.partition("/")
    if above in _TIMES_NS:
        return _TIMES_NS[above]
    factor = _prefix(above)
    if below in _TIMES_NS:
        return factor * 1e9 / _TIMES_NS[below]
    return factor / _prefix(below)


def _prefix(unit: str) -> float:
    lower = unit.lower()
    return _PREFIXES.get(lower[:1], 1.0) if lower[1:] in _COUNTED else 1.0


_LONGEST_LINE = 2**22
_LARGEST = 2.0**63  # of what is counted: sums and ratios of such numbers are finite
_ID = re.compile(r"[0-9]{1,18}")
_HEADER = re.compile(r"ID([,;\t])")  # the first cell of a table, and the mark after it
_RAW = "print it with `ncu --import FILE --csv --page raw`"


class _CsvRow(NamedTuple):
    """One kernel: what each column says and in which unit ("" where the column has none)."""

    cells: dict[str, str]
    units: dict[str, str]
    delimiter: str


def _read_rows(path: Path) -> Iterator[_CsvRow]:
    """The kernels in the file's order. Raises UnreadableReport where there is no such table.

    Lines are parsed one by one: a cut or foreign line costs itself, not what follows.
    """
    header: list[str] = []
    units: dict[str, str] = {}
    delimiter = ","
    for line in _lines(path):
        if "Kernel Name" in line and (found := _HEADER.match(line.replace('"', ""))):
            delimiter, units = found[1], {}
            header = _cells(line, delimiter)
            if not {"ID", "Kernel Name"}.issubset(header):
                raise UnreadableReport(f"{path}: the head of its table is damaged; {_RAW}")
            if "Metric Name" in header:
                raise UnreadableReport(f"{path} is ncu's details page; {_RAW}")
            continue
        cells = _cells(line, delimiter) if header else []
        if not header or len(cells) != len(header):
            continue
        row = dict(zip(header, cells, strict=True))
        if _ID.fullmatch(row["ID"]):
            yield _CsvRow(row, units, delimiter)
        elif not row["ID"] and not row["Kernel Name"]:
            units = row
    if not header:
        raise UnreadableReport(f"{path}: no Nsight Compute table in it; {_RAW}")


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as probe:
            wide = probe.read(2) in (b"\xff\xfe", b"\xfe\xff")  # as Windows shells redirect
        encoding = "utf-16" if wide else "utf-8-sig"
        with path.open(encoding=encoding, errors="replace", newline="") as file:
            while line := file.readline(_LONGEST_LINE):
                if len(line) == _LONGEST_LINE:
                    raise UnreadableReport(f"{path}: a line of over 4 MB in it; {_RAW}")
                if not line.startswith("=="):
                    yield line.rstrip("\r\n")
    except (OSError, UnicodeError) as error:
        raise UnreadableReport(f"{path}: cannot be read ({error})") from None


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


_DURATION = "gpu__time_duration"

# Tensor operations by source type are those of compute capability 9.0. Before it, fp16 is split
# by what it accumulates in (src_fp16_dst_fp16 and src_fp16_dst_fp32) and there is no fp8.
METRICS = (
    f"{_DURATION}.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    *_SCALAR,
    "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
    "sm__ops_path_tensor_src_fp16.sum",
    "sm__ops_path_tensor_src_tf32_dst_fp32.sum",
    "sm__ops_path_tensor_src_fp8.sum",
    "sm__ops_path_tensor_src_fp64.sum",
)
_CALIBRATION_ROWS = 200
_NCU_MISSING = (
    "ncu is not installed: print the counters elsewhere with "
    "`ncu --import FILE --csv --page raw` and use the .csv"
)


@dataclass(frozen=True, slots=True)
class KernelCounters:
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
        """Floating-point operations on tensor cores, two for each multiply-add; None: not counted.

        Counters overlap (fp16 is the sum of fp16 into fp16 and fp16 into fp32, and each of those of
        sparse and dense): one that another covers is left out. Integer operations do not count.
        """
        found = {name: match for name in self.metrics if (match := _TENSOR.fullmatch(name))}
        if not found:
            return 0.0 if self.metrics.get(_PIPE) == 0 else None
        floating = {n: m for n, m in found.items() if "int" not in m["src"]}
        return sum(
            self.metrics[name]
            for name, match in floating.items()
            if not any(_covers(other, match) for n, other in floating.items() if n != name)
        )

    @property
    def flops(self) -> float | None:
        """All floating-point operations; None unless those on and off tensor cores are known."""
        on = self.tensor_flops
        if on is None or not all(name in self.metrics for name in _SINGLE):
            return None
        return on + sum(self.metrics.get(name, 0.0) * w for name, w in _PER_INSTRUCTION.items())


def read_ncu(path: Path) -> list[KernelCounters]:
    """The counters of a CSV file, or of a `.ncu-rep` through ncu. Raises UnreadableReport."""
    check_file(path)
    if path.suffix != ".ncu-rep":
        return _read_csv(path)
    with TemporaryDirectory(prefix="stepscope-") as folder:
        printed = Path(folder) / "counters.csv"
        arguments = ["--import", str(path.resolve()), "--csv", "--page", "raw"]
        run_nvidia_tool("ncu", [*arguments, "--print-units", "base"], _NCU_MISSING, path, printed)
        return _read_csv(printed)


def _read_csv(path: Path) -> list[KernelCounters]:
    rows = _read_rows(path)
    sample = list(islice(rows, _CALIBRATION_ROWS))
    numbers = (cell for row in sample for name, cell in row.cells.items() if "__" in name)
    # A file that needs another mark between its cells has the comma inside its numbers.
    comma = has_decimal_comma(numbers, default=bool(sample) and sample[0].delimiter == ";")
    return [_counters(row, comma) for row in chain(sample, rows)]


def _counters(row: _CsvRow, decimal_comma: bool) -> KernelCounters:
    cells = row.cells
    printed = {
        name: value * unit_scale(row.units.get(name, ""))
        for name, cell in cells.items()
        if "__" in name and (value := parse_number(cell, decimal_comma)) is not None
    }
    metrics = {name: value for name, value in printed.items() if abs(value) < _LARGEST}
    return KernelCounters(
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
