"""Programs with one planted cause each: is it the first thing that is found?

    python tests/causes/table.py [--device cpu|cuda] [--record FOLDER] [NAMES...]

Runs each under `stepscope run` and prints program, planted cause, first finding, verdict. With
`--record`, each run is kept in FOLDER as a small archive (`recorded.py`).
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
HEALTHY = "healthy"
LEAST = 0.05
"""Of the step or the run: the most that may be found in a healthy program."""
GOAL = 0.9
"""Of the planted causes must come first."""
_TIMEOUT_S = 180


@dataclass(frozen=True)
class Program:
    """A program and what its head says: the ids that name its cause, and where it shows."""

    name: str
    path: Path
    causes: tuple[str, ...]
    device: str
    threads: str
    """How many torch gets on the CPU: one, so that a busy machine does not show, or all."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is to be found."""
        return self.causes == (HEALTHY,)


@dataclass(frozen=True)
class Row:
    """What was found in one program."""

    program: Program
    found: tuple[tuple[str, float], ...]
    """Ids with what each is worth, as a share, in their order."""
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """The planted cause comes first; nothing above 5% where it is healthy."""
        if self.problem is not None:
            return False
        if self.program.healthy:
            return all(worth <= LEAST for _, worth in self.found)
        return bool(self.found) and self.found[0][0] in self.program.causes


def programs(device: str | None = None, names: Iterable[str] = ()) -> list[Program]:
    """All programs, by name; of one device, or only those named."""
    wanted = set(names)
    found = [read_program(path) for path in sorted((HERE / "programs").glob("*.py"))]
    if unknown := wanted - {one.name for one in found}:
        raise SystemExit(f"no program named {', '.join(sorted(unknown))}")
    return [
        one for one in found if (not wanted or one.name in wanted) and device in (None, one.device)
    ]


def read_program(path: Path) -> Program:
    """A program by the constants at its top, without running it."""
    told = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    cause = told["CAUSE"]
    causes = (cause,) if isinstance(cause, str) else tuple(cause)
    threads = told.get("THREADS", "one" if told["DEVICE"] == "cpu" else "all")
    return Program(path.stem, path, causes, told["DEVICE"], threads)


def judged(program: Program, document: dict[str, Any]) -> Row:
    """The row of a document of `show --json`."""
    found = tuple((one["id"], worth(one)) for one in document["findings"])
    failed = [text for text in document["problems"] if text.startswith("the rule ")]
    return Row(program, found, "; ".join(failed) or None)


def worth(finding: dict[str, Any]) -> float:
    """The share of the step or run it promises; what it concerns where it promises nothing."""
    predicted = finding["predicted"]
    return float(finding["share"] if predicted is None else 1 - 1 / predicted["speedup"])


def run(program: Program, folder: Path) -> Row:
    """Observe a program into a folder, and read what was found."""
    problem = observe(program, folder)
    return Row(program, (), problem) if problem else read(program, folder)


def observe(program: Program, folder: Path) -> str | None:
    """Run a program into a folder; why that failed, None where it did not."""
    variables = {"OMP_NUM_THREADS": "1"} if program.threads == "one" else {}
    to = ("run", "--quiet", "--force", "--out", str(folder), str(program.path))
    observed = _stepscope(*to, **variables)
    if observed.returncode:
        return f"exit code {observed.returncode}: {observed.stderr[-200:]}"
    return None


def read(program: Program, folder: Path) -> Row:
    """What is found in a folder."""
    shown = _stepscope("show", str(folder), "--json")
    if shown.returncode:
        return Row(program, (), f"show: {shown.stderr[-200:]}")
    return judged(program, json.loads(shown.stdout))


def totals(rows: Sequence[Row]) -> str:
    """Two sentences that say how many."""
    planted = [row for row in rows if not row.program.healthy]
    healthy = [row for row in rows if row.program.healthy]
    first = sum(row.ok for row in planted)
    among = sum(any(i in row.program.causes for i, _ in row.found) for row in planted)
    share = first / len(planted) if planted else 1.0
    return (
        f"planted cause first: {first} of {len(planted)} ({share:.0%}), found at all: {among}. "
        f"healthy without a finding above {LEAST:.0%}: "
        f"{sum(row.ok for row in healthy)} of {len(healthy)}."
    )


def line(row: Row) -> str:
    """A row of the table."""
    first = "; ".join(f"{name} {share:.0%}" for name, share in row.found[:3]) or "–"
    verdict = "ok" if row.ok else "NO"
    text = row.problem or first
    return f"{verdict:3} {row.program.name:26} {row.program.causes[0]:30} {text}"


def main() -> int:
    """Run them one after the other; exit code 1 where too many are missed.

    On a GPU what was found is read beside the next one's run, which leaves most cores idle.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--record", type=Path, help="keep small archives of the runs there")
    parser.add_argument("--keep", type=Path, help="leave the run folders there")
    arguments = parser.parse_args()
    device = arguments.device or (None if arguments.names else "cpu")
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(1) as beside:
        base = arguments.keep or Path(scratch)
        reading = []
        for program in programs(device, arguments.names):
            folder = base / program.name
            archive = arguments.record and arguments.record / f"{program.name}.zip"
            problem = observe(program, folder)
            reading.append(beside.submit(_row, program, folder, problem, archive))
            if program.device == "cpu":
                reading[-1].result()
        rows = [one.result() for one in reading]
    print(totals(rows))
    planted = [row.ok for row in rows if not row.program.healthy]
    good = not planted or sum(planted) >= GOAL * len(planted)
    return 0 if good and all(row.ok for row in rows if row.program.healthy) else 1


def _row(program: Program, folder: Path, problem: str | None, archive: Path | None) -> Row:
    """The row of a run that was observed, printed; the run is kept where an archive is named."""
    row = Row(program, (), problem) if problem else read(program, folder)
    print(line(row), flush=True)
    if archive is not None and (folder / "run.json").exists():
        from recorded import record

        record(folder, archive)
    return row


def _stepscope(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "stepscope.cli.main", *arguments],
        env={**os.environ, **variables, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )


if __name__ == "__main__":
    sys.exit(main())
