"""Nsight Compute beside a program: counters of the kernels that matter, within a time."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepscope.launch.child import run_child
from stepscope.record.errors import StepscopeError
from stepscope.trace.ncu import METRICS, Counters, read_ncu

COUNTED: Final = (
    "time_duration",
    "dram__bytes",
    "_op_fadd",
    "_op_fmul",
    "_op_ffma",
    "bf16",
    "tf32",
)
"""Parts of the names of the counters used: each further one runs every kernel once more."""
_HALF: Final = ("_op_hadd", "_op_hmul", "_op_hfma", "src_fp16")
_ERROR: Final = re.compile(r"==ERROR==\s*(.+)")


@dataclass(frozen=True, slots=True)
class Count:
    """What ncu counted, launch by launch; `why` says why that is nothing, None if all is well."""

    counters: list[Counters]
    why: str | None
    seconds: float


def counters_command(log: Path, kernels: str | None = None, half: bool = False) -> list[str]:
    """What stands before a program to count FLOPs and bytes between profiler.start and stop.

    `kernels` is a regular expression on functions' names (None: all of them); `half` counts
    arithmetic in fp16 too.
    """
    parts = (*COUNTED, *_HALF) if half else COUNTED
    wanted = [name for name in METRICS if any(part in name for part in parts)]
    return [
        *("ncu", "--target-processes", "all", "--clock-control", "none"),
        *("--profile-from-start", "off", "--metrics", ",".join(wanted)),
        *(("--kernel-name", f"regex:{kernels}") if kernels else ()),
        *("--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)),
    ]


def pattern(names: Iterable[str]) -> str:
    """The regular expression for functions of exactly these names."""
    return f"^({'|'.join(sorted(re.escape(name) for name in set(names)))})$"


def count(
    program: Sequence[str],
    environ: Mapping[str, str],
    names: Iterable[str],
    folder: Path,
    timeout_s: float,
    half: bool = False,
) -> Count:
    """Run a program under ncu; kernels named so are counted. KeyboardInterrupt if told to end."""
    log, said = folder / "counters.csv", folder / "ncu.txt"
    command = [*counters_command(log, pattern(names), half), *program]
    began = time.monotonic()
    with open(said, "wb") as output:
        outcome = run_child(command, environ, timeout_s, lambda _: None, lambda: None, output)
    seconds = time.monotonic() - began
    if outcome.told is not None:
        raise KeyboardInterrupt
    if outcome.timed_out:
        return Count(
            [], f"ncu took longer than {timeout_s:.0f} s: --timeout gives it more", seconds
        )
    try:
        found = read_ncu(log)
    except (StepscopeError, OSError) as problem:
        return Count([], _complaint(log, said) or str(problem), seconds)
    why = _complaint(log, said) if not found else None
    return Count(found, why if found else why or "ncu saw none of these kernels", seconds)


def _complaint(*files: Path) -> str | None:
    """The first error of ncu's in what it wrote."""
    for file in files:
        try:
            text = file.read_text(errors="replace")
        except OSError:
            continue
        if found := _ERROR.search(text):
            if "ERR_NVGPUCTRPERM" in found[1]:
                return "ncu may not read the GPU's counters here (ERR_NVGPUCTRPERM): run as root"
            return f"ncu: {found[1].strip()[:200]}"
    return None
