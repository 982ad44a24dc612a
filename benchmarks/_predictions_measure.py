"""Runs of one program under `stepscope run`: their steps, and what their window promises."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from _about import SOURCE

LONGEST_S = 180


def observed(
    folder: Path, words: list[str], device: str, fix: str = "", window: bool = False
) -> str:
    """Run a program, with a fix or without; why it failed, empty where it ended well."""
    command = [sys.executable, "-m", "stepscope.cli.main", "run", "--quiet", "--force"]
    options = ["--out", str(folder), *([] if window else ["--no-window"])]
    asked = ["--fix", fix] if fix else []
    try:
        done = subprocess.run(
            [*command, *options, *asked, *words],
            env=environment(device), cwd=folder.parent, capture_output=True, timeout=LONGEST_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"took more than {LONGEST_S} s"
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return f"exit code {done.returncode}: {' '.join(last)}" if done.returncode else ""


def ended(folder: Path) -> str:
    """Why a run made earlier failed, empty where it ended well."""
    from stepscope.store.folder import read_run

    code = read_run(folder).run.exit_code
    return "" if code == 0 else f"exit code {code}"


def environment(device: str) -> dict[str, str]:
    """The child's: this checkout first; on the CPU one thread, which other load disturbs least."""
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    threads = {"OMP_NUM_THREADS": "1"} if device == "cpu" else {}
    return {**threads, **os.environ, "PYTHONPATH": path}


def step_times(folder: Path) -> tuple[list[float], float | None]:
    """The steps of a run that are neither warm-up nor recorded, in ms, and samples in each.

    None where samples were not counted.
    """
    from stepscope.analyze.run.steps import assemble_steps
    from stepscope.stats.series import warmup_length
    from stepscope.store.folder import read_run
    from stepscope.store.table import read_table

    started = read_run(folder).start_ns
    steps = assemble_steps(read_table(folder / "rows.npy"), started)
    bare = steps.duration[~steps.in_window] / 1e6
    first = warmup_length(bare)
    counted = steps.samples[~steps.in_window][first:]
    samples = float(counted.mean()) if len(counted) else 0.0
    return bare[first:].tolist(), samples if samples > 0 else None


def alike(times: list[float], samples: float | None, usual: float | None) -> list[float]:
    """Times of steps as if each had as many samples as usual: accumulation puts several in one."""
    factor = usual / samples if usual and samples else 1.0
    return [factor * time for time in times]


class Others:
    """How many cores everything but our children kept busy since this was made."""

    def __init__(self) -> None:
        self._begun = _clocks()

    def cores(self) -> float:
        """On average; other machines on the same host are not seen."""
        wall, busy, ours = (now - then for now, then in zip(_clocks(), self._begun, strict=True))
        return max(0.0, (busy - ours) / wall)


def calm(cores: float, longest_s: float) -> None:
    """Wait until others keep no more than so many cores busy, or for so long."""
    import time

    ends = time.monotonic() + (longest_s if math.isfinite(cores) else 0.0)
    while time.monotonic() < ends:
        others = Others()
        time.sleep(min(1.0, longest_s))
        if others.cores() <= cores:
            return


def _clocks() -> tuple[float, float, float]:
    """Seconds that passed, that all cores worked, and that our ended children did."""
    import resource
    import time

    import psutil

    spent = psutil.cpu_times()
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = spent.user + spent.nice + spent.system
    return time.monotonic(), worked, ours.ru_utime + ours.ru_stime


def unfit(folder: Path) -> list[str]:
    """Why the fix of a run did not take hold, empty where it did."""
    from stepscope.record.fix import fix_outcomes
    from stepscope.record.fix_words import reason_words
    from stepscope.store.folder import read_run
    from stepscope.store.json_lines import read_facts

    facts = read_facts(folder / "facts.jsonl")
    fixes = fix_outcomes(facts.fixes, read_run(folder).fixes)
    return [reason for one in fixes if one.state != "applied" for reason in reason_words(one)]


def promises(folder: Path, fixes: list[str]) -> dict[str, dict[str, Any] | None]:
    """What each fix should be worth by the window of the unchanged program; None: not known.

    A finding that proposes the very fix speaks for it; else the fix's own change is replayed.
    """
    from stepscope.analyze.run.records import RunRecords
    from stepscope.analyze.run.summary import summarize
    from stepscope.diagnose.findings import with_findings
    from stepscope.measure.prediction import window_predictor

    records = RunRecords(folder)
    run = with_findings(summarize(records), records)
    base_ms = run.steps.mean_ms or 0.0
    found = {str(one.fix): one for one in (*run.findings, *run.minor) if one.fix is not None}
    see = window_predictor(run, folder)
    return {fix: _promise(base_ms, see((), (fix,)), found.get(fix)) for fix in fixes}


def _promise(base_ms: float, seen: Any, finding: Any) -> dict[str, Any] | None:
    if finding is not None and finding.predicted is not None:
        one, by = finding.predicted, finding.id
        known = {key: getattr(one, key) for key in ("speedup", "low", "high", "step_ms")}
    elif seen is not None:
        by = "replay"
        known = {key: getattr(seen, key) for key in ("speedup", "low", "high")}
        known["step_ms"] = base_ms / seen.speedup
    else:
        return None
    return known | {"base_ms": base_ms, "by": by}
