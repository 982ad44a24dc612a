"""Did a change cost speed? Two checkouts side by side: what observing adds, and reading traces.

python benchmarks/before_after.py --before OLD_TREE     measure, write the results, print the table
python benchmarks/before_after.py --table FILE.json     print the table of earlier results

Every round runs both trees, in an order that alternates. Each runs its own copy of
`programs/blocks.py` (observed and bare blocks of steps inside one process) and of `_trace_child.py`
(a real trace, read and analysed in a process of its own), so only stepscope differs.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from _about import SOURCE, about
from _overhead_children import Setting, cores_for
from _overhead_measure import block_estimates
from _overhead_stats import estimate
from _overhead_table import percent

ROOT = SOURCE.parent
OUT = ROOT / "benchmarks" / "results" / "before-after.json"
TRACE = ROOT / "tests" / "data" / "traces" / "v100_train_2ranks_rank1.json.gz"
BLOCKS = "programs/blocks.py"
READING = ("import_s", "load_s", "analyse_s")


def main() -> None:
    sys.path.insert(0, str(SOURCE))
    options = _arguments()
    if options.table:
        print(_table(json.loads(options.table.read_text())), end="")
        return
    trees = {"before": options.before.resolve(), "after": ROOT}
    head = about("stepscope.before_after/1", "before_after.py", os.path.basename, device="cpu")
    document: dict[str, Any] = {
        **head,
        "before": _git(trees["before"]),
        "steps": [
            _observe(trees, name, options.rounds, options.seconds) for name in options.programs
        ],
        "reading": _read_traces(trees, options.readings),
    }
    options.out.write_text(json.dumps(document) + "\n")
    print(_table(document), end="")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="the checkout to compare with")
    parser.add_argument("--programs", nargs="+", default=["mlp", "cnn"], help="[mlp cnn]")
    parser.add_argument("--rounds", type=int, default=6, help="of both trees [6]")
    parser.add_argument("--seconds", type=float, default=12, help="of blocks per process [12]")
    parser.add_argument("--readings", type=int, default=7, help="of the trace by each tree [7]")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", type=Path, metavar="FILE.json", help="only print the table")
    options = parser.parse_args()
    if options.before is None and options.table is None:
        parser.error("name a checkout to compare with: --before OLD_TREE")
    return options


def _git(tree: Path) -> str:
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _child(tree: Path, program: str, *arguments: str) -> dict[str, Any]:
    """The JSON that a tree's own program prints. Raises RuntimeError with its stderr."""
    done = subprocess.run(
        [sys.executable, str(tree / "benchmarks" / program), *arguments],
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{program} of {tree} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _in_turn(trees: dict[str, Path], rounds: int) -> list[list[tuple[str, Path]]]:
    """Both trees in each round; which comes first alternates."""
    order = list(trees.items())
    return [order[:: -1 if number % 2 else 1] for number in range(rounds)]


def _observe(trees: dict[str, Path], program: str, rounds: int, seconds: float) -> dict[str, Any]:
    """What observing adds to a program's steps, in each tree."""
    setting = Setting(program, "cpu", cores_for("cpu"))
    shape = setting.shape
    blocks: dict[str, list[Any]] = {name: [] for name in trees}
    for number, turn in enumerate(_in_turn(trees, rounds)):
        for name, tree in turn:
            print(f"{program}, round {number + 1}: {name}", file=sys.stderr, flush=True)
            limits = ["--seconds", str(seconds), "--rounds", "10000", "--seed", str(number)]
            counts = ["--steps", str(shape.block), "--lead", str(shape.lead)]
            ran = _child(tree, BLOCKS, *limits, *counts, *_arguments_of(tree, setting))
            plan = ran.get("plan")
            setting = replace(setting, size=plan[plan["knob"]] if plan else ran["size"] or None)
            blocks[name].append(ran["rounds"])
    processes = {
        name: [block_estimates(process)["observed_step"]["ratio"] for process in many]
        for name, many in blocks.items()
    }
    return {
        "program": program,
        "overhead": {
            name: block_estimates([one for process in many for one in process])
            for name, many in blocks.items()
        },
        "processes": processes,
        "after_to_before": asdict(
            estimate(list(zip(processes["after"], processes["before"], strict=True)))
        ),
    }


def _arguments_of(tree: Path, setting: Setting) -> list[str]:
    """Earlier trees choose the program by the length of its step."""
    arguments = setting.arguments()
    if '"--ms"' in (tree / "benchmarks" / BLOCKS).read_text():
        arguments[:2] = ["--ms", str(setting.ms)]
    return arguments


def _read_traces(trees: dict[str, Path], rounds: int) -> dict[str, Any]:
    """Seconds of each tree to import, load and analyse one trace."""
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for turn in _in_turn(trees, rounds):
        for name, tree in turn:
            found = _child(tree, "_trace_child.py", "stepscope", str(TRACE))
            seconds[name].append({part: found[part] for part in READING})
    whole = {name: [sum(one.values()) for one in many] for name, many in seconds.items()}
    pairs = list(zip(whole["after"], whole["before"], strict=True))
    return {"trace": TRACE.name, "seconds": seconds, "after_to_before": asdict(estimate(pairs))}


def _table(document: dict[str, Any]) -> str:
    lines = [
        f"{document['before']} and {document['versions']['commit']}, {document['date']}\n",
        "| | before | after | after / before (90% interval) |",
        "|---|--:|--:|--:|",
    ]
    for step in document["steps"]:
        cells = [percent(step["overhead"][name]["observed_step"]["ratio"]) for name in _SIDES]
        lines.append(_row(f"observing {step['program']}", cells, step["after_to_before"]))
        noise = [percent(step["overhead"][name]["control_step"]["ratio"]) for name in _SIDES]
        lines.append(f"| &nbsp; bare against bare | {' | '.join(noise)} | |")
    reading = document["reading"]
    for part in READING:
        medians = [median(one[part] for one in reading["seconds"][name]) for name in _SIDES]
        lines.append(f"| {reading['trace']}: {part} | {medians[0]:.3f} | {medians[1]:.3f} | |")
    totals = [median(sum(one.values()) for one in reading["seconds"][name]) for name in _SIDES]
    lines.append(_row("all three, s", [f"{s:.3f}" for s in totals], reading["after_to_before"]))
    return "\n".join(lines) + "\n"


_SIDES = ("before", "after")


def _row(name: str, cells: list[str], ratio: dict[str, Any]) -> str:
    shown = f"{percent(ratio['ratio'])} ({percent(ratio['low'])} to {percent(ratio['upper'])})"
    return f"| {name} | {' | '.join(cells)} | {shown} |"


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as problem:
        sys.exit(str(problem))
