"""`stepscope bench kernels`: records the program once, counts with Nsight Compute if installed, and
makes the document."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Final

from msgspec.structs import asdict

from stepscope.analyze.timeline.roofline.ceilings import Ceilings, ceilings_for, measured_ceilings
from stepscope.bench.grid import BenchRequest, Point, Variant, variant_label
from stepscope.bench.measure_point import USAGE_EXIT_CODE, environment_with, run_logged
from stepscope.bench.record import Tell, fix_reports
from stepscope.bench.results import BenchResult, FixReport, KernelsResult, KernelTables, NcuUse
from stepscope.bench.summary import bench_result
from stepscope.launch.program import Program
from stepscope.measure.trial.folder import OUTPUT_FILE, last_output_line
from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.fix import fix_outcomes
from stepscope.record.timeline import Timeline
from stepscope.trace.nsight.counters import METRICS, KernelCounters, read_ncu

_COUNTED = ("time_duration", "dram__bytes", "_op_fadd", "_op_fmul", "_op_ffma", "bf16", "tf32")
"""Parts of the names of the counters used; each further one runs every kernel once more."""
_HALF: Final = ("_op_hadd", "_op_hmul", "_op_hfma", "src_fp16")
_ERROR: Final = re.compile(r"==ERROR==\s*(.+)")


@dataclass(frozen=True, slots=True)
class NcuCount:
    """What ncu counted, launch by launch; `why` says why there is nothing, None if all is well."""

    counters: list[KernelCounters]
    why: str | None
    seconds: float


def counters_command(log: Path, kernels: str | None = None, half: bool = False) -> list[str]:
    """The command prefix that counts FLOPs and bytes between profiler.start and stop. `kernels` is
    a regular expression on function names (None: all); `half` counts fp16 arithmetic too."""
    parts = (*_COUNTED, *_HALF) if half else _COUNTED
    wanted = [name for name in METRICS if any(part in name for part in parts)]
    return [
        *("ncu", "--target-processes", "all", "--clock-control", "none"),
        *("--profile-from-start", "off", "--metrics", ",".join(wanted)),
        *(("--kernel-name", f"regex:{kernels}") if kernels else ()),
        *("--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)),
    ]


def run_ncu(
    program: Sequence[str],
    environ: Mapping[str, str],
    names: Iterable[str],
    folder: Path,
    timeout_s: float,
    half: bool = False,
) -> NcuCount:
    """Count the kernels of these names under ncu. Raises KeyboardInterrupt on a signal to stop."""
    log, said = folder / "counters.csv", folder / "ncu.txt"
    exactly = "|".join(sorted(re.escape(name) for name in set(names)))
    command = [*counters_command(log, f"^({exactly})$", half), *program]
    began = time.monotonic()
    outcome = run_logged(command, environ, timeout_s, said)
    seconds = time.monotonic() - began
    if outcome.timed_out:
        why = f"ncu took longer than {timeout_s:.0f} s: --timeout gives it more"
        return NcuCount([], why, seconds)
    try:
        found = read_ncu(log)
    except (StepscopeError, OSError) as problem:
        return NcuCount([], _complaint(log, said) or str(problem), seconds)
    if found:
        return NcuCount(found, None, seconds)
    return NcuCount([], _complaint(log, said) or "ncu saw none of these kernels", seconds)


def _complaint(*files: Path) -> str | None:
    """The first error in ncu's output."""
    for file in files:
        try:
            text = file.read_text(errors="replace")
        except OSError:
            continue
        if found := _ERROR.search(text):
            if "ERR_NVGPUCTRPERM" in found[1]:
                return (
                    "no permission to read GPU counters (ERR_NVGPUCTRPERM): run as root or ask"
                    " your admin to enable them"
                )
            return f"ncu: {found[1].strip()[:200]}"
    return None


STEPS: Final = 3  # recorded


class KernelSubject(Point, frozen=True):
    """A point whose steps are recorded."""

    def step_command(self, *more: str) -> list[str]:
        """The command line of the program that runs a few steps."""
        words = ("--mode", self.mode, *self.options(), *more)
        return Program("stepscope.workloads.one_step", words, module=True).command


def record_kernels(
    subject: KernelSubject, folder: Path, timeout_s: float
) -> tuple[Path, tuple[FixReport, ...]]:
    """(the recording, the outcome of each fix). Raises UsageError or StepscopeError."""
    from stepscope.store.json_lines import read_facts

    folder.mkdir(parents=True, exist_ok=True)
    trace, said = folder / "trace.json", folder / OUTPUT_FILE
    command = subject.step_command("--steps", str(STEPS), "--record", str(trace))
    environ = environment_with(subject.fixes, folder)
    outcome = run_logged(command, environ, timeout_s, said)
    if outcome.timed_out:
        raise StepscopeError(f"{subject.model}: not recorded within {timeout_s:.0f} s: --timeout")
    code = outcome.exit_code
    if code or not trace.exists():
        kind = UsageError if code == USAGE_EXIT_CODE else StepscopeError
        raise kind(last_output_line(folder) or f"the program ended with exit code {code}")
    facts = read_facts(folder / "facts.jsonl")
    return trace, fix_reports(fix_outcomes(facts.fixes, subject.fixes))


def count_kernels(
    subject: KernelSubject, names: Sequence[str], folder: Path, timeout_s: float, tell: Tell
) -> NcuCount:
    """Counters of the named kernels, if ncu is installed and there are any."""
    if not names:
        return NcuCount([], "there are no kernels on a CPU", 0.0)
    if which("ncu") is None:
        return NcuCount([], "ncu is not on the PATH", 0.0)
    tell(f"counting {len(names)} kernels with ncu, at most {timeout_s:.0f} s")
    folder.mkdir(parents=True, exist_ok=True)
    half = any("fp16" in fix for fix in subject.fixes)
    environ = environment_with(subject.fixes, folder)
    return run_ncu(subject.step_command(), environ, names, folder, timeout_s, half)


def ceilings_of_timeline(timeline: Timeline, device: str) -> Ceilings | None:
    """The device's ceilings: measured here, else from the datasheet, else unknown."""
    from stepscope.hardware.ceiling_cache import known_ceilings, load_ceilings
    from stepscope.hardware.ceilings import device_key

    if device == "cpu":
        kept = load_ceilings(device_key("cpu"))
        return measured_ceilings(kept) if kept else None
    return ceilings_for(timeline, known_ceilings())


def kernels_result(
    subject: KernelSubject,
    tables: KernelTables,
    count: NcuCount,
    fixes: tuple[FixReport, ...],
    command: str,
    started: str,
) -> BenchResult:
    """A benchmark's result, with its own part under "kernels"."""
    request = BenchRequest(
        models=(subject.model,),
        modes=(subject.mode,),
        devices=(subject.device,),
        batches=(subject.batch,),
        variants=(Variant(variant_label(subject.fixes), subject.fixes),),
        settings=dict(sorted(subject.settings.items())),
        rounds=1,
    )
    about = asdict(subject)
    del about["settings"]
    kernels = KernelsResult(
        **about,
        applied=fixes,
        ncu=NcuUse(bool(count.counters), count.why, count.seconds),
        **asdict(tables),
    )
    return bench_result(request, [], {}, command, started, kernels_notes(kernels), kernels=kernels)


def kernels_notes(kernels: KernelsResult) -> list[str]:
    """Notes needed to interpret the numbers."""
    found = []
    if kernels.on == "host":
        found.append(
            "no kernels on a CPU: times are the operators' self time over all threads, and"
            " recording slows short ones"
        )
    elif kernels.ncu is not None and kernels.ncu.used:
        found.append(
            f"counted: {kernels.counted:,.0f} of {kernels.launched:,.0f} kernels per step,"
            f" in {kernels.ncu.seconds:.0f} s of ncu"
        )
    elif kernels.ncu is not None:
        found.append(f"FLOPs and bytes come from operator shapes alone: {kernels.ncu.why_not}")
    if kernels.ceilings is None:
        found.append("ceilings unknown: stepscope doctor measures them")
    elif kernels.ceilings.source == "datasheet":
        found.append("ceilings from the datasheet: stepscope doctor measures this device's own")
    for fix in kernels.applied:
        if fix.state != "applied":
            why = f": {fix.reasons[-1]}" if fix.reasons else ""
            found.append(f"fix {fix.name}: {fix.state}{why}")
    return found
