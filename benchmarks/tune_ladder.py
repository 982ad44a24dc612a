"""What `stepscope tune` makes of unedited programs, beside what hand-tuning reached.

python benchmarks/tune_ladder.py [slow] [resnet18] …     on a machine with a GPU
python benchmarks/tune_ladder.py --list
python benchmarks/tune_ladder.py --table FILE.json       the tables of earlier results

Each case is one tune in a folder of its own. What is known is written after each; what the file has
of other cases stays, each with the command that made it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _about import SOURCE, about, kept
from _tune_table import table

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"
DEFAULT = HERE / "results" / "tune-ladder.json"


@dataclass(frozen=True, slots=True)
class Case:
    """`goal`: what hand-tuning or another tool reached, in words; `goal_ms` where it is a time."""

    program: tuple[str, ...]
    goal: str
    goal_ms: float | None = None
    goal_speedup: float | None = None
    options: tuple[str, ...] = ()


CASES = {
    "slow": Case(("slow.py", "--steps", "2000"), "4.8× by hand", goal_speedup=4.8),
    "slow-semantic": Case(
        ("slow.py", "--steps", "2000"), "8×", goal_speedup=8.0, options=("--allow", "semantic")
    ),
    "resnet18": Case(
        ("resnet18.py", "--steps", "4000"),
        "2.0 ms; pytorch-autotune 2.44 ms after 78 s, by hand 1.54 ms",
        goal_ms=2.0,
    ),
    "resnet50-64": Case(
        ("resnet50.py", "--steps", "2000", "--batch", "64"),
        "12 ms; pytorch-autotune 19.7 ms after 92 s, by hand 11.8 ms",
        goal_ms=12.0,
    ),
    "resnet50-256": Case(
        ("resnet50.py", "--steps", "2000", "--batch", "256"), "38 ms; by hand 37.7", goal_ms=38.0
    ),
    "infer": Case(("resnet50_infer.py", "--steps", "4000"), "2.3 ms; by hand 2.23", goal_ms=2.3),
    "decoder": Case(("decoder.py",), "improved, or said to be healthy"),
    "hf": Case(("hf_classifier.py",), "improved, or said to be healthy"),
    "lightning": Case(("lightning_cnn.py",), "improved, or said to be healthy"),
}


def main() -> None:
    sys.path.insert(0, str(SOURCE))
    options = arguments()
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    if options.list:
        print("\n".join(f"{name}: {' '.join(case.program)}" for name, case in CASES.items()))
        return
    document = about("stepscope.tune-ladder/1", "tune_ladder.py", device=options.device)
    document["cases"] = {}
    made = {"date": document["date"], "commit": document["versions"]["commit"]}
    kept(options.out, document, "cases", commands=False)
    for name in options.cases or list(CASES):
        command = f"python benchmarks/tune_ladder.py {name} --budget {options.budget}"
        tune = tuned(CASES[name], options)
        document["cases"][name] = {"made": {**made, "command": command}, **tune}
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document), end="")


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], metavar="CASE")
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--timeout", type=float, default=560.0, help="seconds for each case")
    parser.add_argument("--out", type=Path, default=DEFAULT)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", type=Path, metavar="FILE.json")
    return parser.parse_args()


def tuned(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """One tune: its document without curves, its wall time, and what it was to reach."""
    goal = {"words": case.goal, "ms": case.goal_ms, "speedup": case.goal_speedup}
    with tempfile.TemporaryDirectory() as place:
        shutil.copyfile(EXAMPLES / case.program[0], Path(place) / case.program[0])
        command = [sys.executable, "-m", "stepscope.cli.main", "tune", "--json"]
        command += ["--budget", options.budget, "--on", options.device, *case.options]
        began = time.monotonic()
        try:
            done = subprocess.run(
                [*command, *case.program],
                cwd=place,
                env=_environment(),
                stdout=subprocess.PIPE,
                text=True,
                timeout=options.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"goal": goal, "failed": f"took more than {options.timeout:.0f} s"}
        wall_s = time.monotonic() - began
    if done.returncode:
        return {"goal": goal, "failed": f"exit code {done.returncode}", "wall_s": wall_s}
    found = json.loads(done.stdout)
    from stepscope.report.story.tune.words import proof_text, rejection_text
    from stepscope.results.load import decode
    from stepscope.tune.document import Tune

    told = decode(found, Tune)
    for row, one in zip(found["rejected"], told.rejected, strict=True):
        row["why"] = rejection_text(one)
    if told.final is not None and told.final.proof is not None:
        found["final"]["proof"]["words"] = proof_text(told.final.proof)
    found.pop("machine")  # the whole document has it
    found["run"].pop("folder")
    for side in (found["baseline"], *found["ladder"]):
        side.pop("losses", None)
    return {"goal": goal, "wall_s": wall_s, "program": " ".join(case.program), "tune": found}


def _environment() -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{path}" if path else str(SOURCE)}


if __name__ == "__main__":
    main()
