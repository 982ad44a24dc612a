"""Causes and promises on a busy machine: the programs of tests/causes beside 0, 1 and 3 neighbours.

python benchmarks/busy.py [--loads 0 1 3] [--pairs N] [--jobs N] [--minutes N] [NAMES...]
python benchmarks/busy.py --table FILE.json

Each program is observed on two cores that it shares with that many processes that never rest. Is
its planted cause still found first, are the neighbours named, and is what it is promised above 10%
no loss? Promises are measured beside the same neighbours, by pairs of runs with and without the
fix. With `--jobs`, so many pairs of cores are used at once. What the file has is kept and not
measured again (`--again` does).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from _about import SOURCE, about

HERE = Path(__file__).resolve().parent
PROMISED = 1.10
_CORES = 2
_TIMEOUT_S = 600
_BUSY = "while True: sum(i * i for i in range(100_000))"
sys.path[:0] = [str(SOURCE), str(HERE.parent / "tests" / "causes")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--loads", type=int, nargs="+", default=[0, 1, 3])
    parser.add_argument("--pairs", type=int, default=2, help="of runs for each promise [2]")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time [1]")
    parser.add_argument("--minutes", type=float, help="begin no program after that long")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "busy.json")
    parser.add_argument("--table", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    from table import programs  # type: ignore[import-not-found]

    document = about("stepscope.busy/1", "busy.py", device="cpu")
    rows: dict[str, Any] = {}
    if options.out.exists() and not options.again:
        rows = json.loads(options.out.read_text())["rows"]
    wanted = [
        (program, load)
        for load in options.loads
        for program in programs("cpu", options.names)
        if f"{program.name} {load}" not in rows
    ]
    until = time.monotonic() + 60 * (options.minutes or float("inf"))
    cores = sorted(os.sched_getaffinity(0))
    free: SimpleQueue[set[int]] = SimpleQueue()
    for job in range(options.jobs):
        free.put(set(cores[job * _CORES : (job + 1) * _CORES]))

    def measure(program: Any, load: int) -> None:
        if time.monotonic() > until:
            return
        own = free.get()
        try:
            with neighbours(load, own), tempfile.TemporaryDirectory() as scratch:
                row = judged(program, load, own, Path(scratch), options.pairs, until)
            rows[f"{program.name} {load}"] = row
            print(line(row), flush=True)
            options.out.write_text(json.dumps(document | {"rows": rows}, indent=1) + "\n")
        finally:
            free.put(own)

    with ThreadPoolExecutor(options.jobs) as pool:
        for done in [pool.submit(measure, *one) for one in wanted]:
            done.result()
    print(table(document | {"rows": rows}), end="")


@contextmanager
def neighbours(count: int, cores: set[int]) -> Iterator[None]:
    """So many processes that keep these cores busy."""
    others = [
        subprocess.Popen([sys.executable, "-c", _BUSY], preexec_fn=lambda: _pin(cores))
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _pin(cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)


def judged(
    program: Any, load: int, cores: set[int], scratch: Path, pairs: int, until: float
) -> dict[str, Any]:
    """What is found in a program beside its neighbours, and what became of its promises."""
    row: dict[str, Any] = {
        "program": program.name, "load": load, "causes": list(program.causes),
        "healthy": program.healthy, "problem": None, "found": [], "promises": [],
    }  # fmt: skip
    document = _observed(program, cores, scratch / "run")
    if isinstance(document, str):
        return row | {"problem": document}
    row["found"] = [one["id"] for one in document["findings"]]
    row["step_ms"] = document["steps"]["mean_ms"]
    row["others_percent"] = (document["host"] or {}).get("other_cpu_percent")
    shown = _stepscope(cores, {}, "show", str(scratch / "run"))
    row["neighbours_named"] = "Busy machine" in shown.stdout
    row["first"] = row["found"][:1] != [] and row["found"][0] in program.causes
    for one in document["findings"]:
        promise, fix = one["predicted"], one["fix"]
        if promise is None or fix is None or promise["speedup"] <= PROMISED:
            continue
        text = fix["name"] if fix["value"] is None else f"{fix['name']}={fix['value']}"
        if time.monotonic() < until:
            row["promises"].append(_measured(program, cores, scratch, text, promise, pairs))
    return row


def _measured(
    program: Any, cores: set[int], scratch: Path, fix: str, promise: Any, pairs: int
) -> dict[str, Any]:
    """A promise against pairs of runs, one after the other, in turn."""
    sides: dict[str, list[float]] = {"base": [], "fixed": []}
    told: dict[str, Any] = {"fix": fix, "promised": promise["speedup"], "low": promise["low"]}
    for number in range(pairs):
        for side in ("base", "fixed") if number % 2 == 0 else ("fixed", "base"):
            given = ["--fix", fix] if side == "fixed" else []
            found = _observed(program, cores, scratch / side, "--no-window", *given)
            if isinstance(found, str):
                return told | {"problem": found}
            if side == "fixed" and found["fixes"][0]["state"] != "applied":
                return told | {"problem": f"refused: {found['fixes'][0]['reasons']}"}
            sides[side].append(found["steps"]["mean_ms"])
    base, fixed = (sum(sides[side]) / pairs for side in ("base", "fixed"))
    return told | {"measured": base / fixed, "base_ms": sides["base"], "fixed_ms": sides["fixed"]}


def _observed(program: Any, cores: set[int], folder: Path, *options: str) -> dict[str, Any] | str:
    """`show --json` of a run; in a line, what went wrong."""
    variables = {"OMP_NUM_THREADS": "1"} if program.threads == "one" else {}
    command = ("run", "--quiet", "--force", "--out", str(folder), *options, str(program.path))
    run = _stepscope(cores, variables, *command)
    if run.returncode:
        return f"exit code {run.returncode}: {run.stderr[-200:]}"
    shown = _stepscope(cores, {}, "show", str(folder), "--json")
    if shown.returncode:
        return f"show: {shown.stderr[-200:]}"
    return dict(json.loads(shown.stdout))


def _stepscope(
    cores: set[int], variables: dict[str, str], *arguments: str
) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "stepscope.cli.main", *arguments],
        env={**os.environ, **variables, "PYTHONPATH": path, "NO_COLOR": "1"},
        preexec_fn=lambda: _pin(cores),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )


def line(row: dict[str, Any]) -> str:
    """A program beside so many neighbours."""
    told = row["problem"] or ", ".join(row["found"][:2]) or "nothing found"
    kept = [
        f"{one['fix']} {one['promised']:.2f}→{one['measured']:.2f}×"
        if "measured" in one
        else f"{one['fix']} {one['promised']:.2f}× {one['problem']}"
        for one in row["promises"]
    ]
    mark = "ok" if row.get("first") or row["healthy"] else "NO"
    return f"{mark:3}{row['program']:26} beside {row['load']}: {told}  {'; '.join(kept)}"


def table(document: dict[str, Any]) -> str:
    """How many causes come first, and what became of promises, by the number of neighbours."""
    rows = list(document["rows"].values())
    parts = [
        "| neighbours | cause first | named | promises | losses | refused |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for load in sorted({row["load"] for row in rows}):
        there = [row for row in rows if row["load"] == load]
        planted = [row for row in there if not row["healthy"]]
        kept = [one for row in there for one in row["promises"]]
        cells: Sequence[object] = (
            load,
            f"{sum(bool(row.get('first')) for row in planted)} of {len(planted)}",
            f"{sum(bool(row.get('neighbours_named')) for row in there)} of {len(there)}",
            len(kept),
            sum(one.get("measured", 1.0) < 1 for one in kept),
            sum("problem" in one for one in kept),
        )
        parts.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
