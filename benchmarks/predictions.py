"""Predicted against measured: each fix applied for real beside what the window promised of it.

python benchmarks/predictions.py --device cpu                     run, write, print the table
python benchmarks/predictions.py --programs slow+gpt --fixes fused_optimizer+workers=2
python benchmarks/predictions.py --seconds 600                    as much as that allows
python benchmarks/predictions.py --table FILE.json                the table of earlier results

Pairs that the results have already are not run again (`--again` does); those missing are added.
What is known is written after each program. With `--windows FOLDER` the unchanged, recorded runs
are kept there, and all predictions are made anew from those that are there. A run during which
other programs kept more than `--others` cores busy is made again, thrice at most. With `--made
FOLDER` only runs that lie there are read, made earlier by the same `stepscope run`: none is made.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _about import SOURCE, about
from _predictions_measure import (
    Others,
    alike,
    calm,
    ended,
    observed,
    promises,
    step_times,
    unfit,
)
from _predictions_pairs import judged, lacking, with_promise
from _predictions_programs import PROGRAMS, arguments, half
from _predictions_table import table

_TRIES = 3  # runs at most, where others disturb them
_PATIENCE_S = 30.0  # waited for others before each
RESULTS = Path(__file__).resolve().parent / "results"
Pair = dict[str, Any]


def main() -> None:
    sys.path.insert(0, str(SOURCE))  # this checkout is measured, installed or not
    options = asked()
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    out = options.out or RESULTS / f"predictions-{options.device}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    document = about("stepscope.predictions/1", "predictions.py", _without_folders, options.device)
    pairs: list[Pair] = []
    if out.exists() and not options.again:
        earlier = json.loads(out.read_text())
        pairs = earlier["pairs"]
        command = f"{earlier['command']}; {document['command']}"
        if options.made:  # where and when they were made, the results say already
            document = {key: value for key, value in earlier.items() if key != "pairs"}
        document["command"] = command
    with tempfile.TemporaryDirectory() as scratch:
        windows = options.windows.resolve() if options.windows else Path(scratch)
        pairs = again(pairs, windows, options.device)
        ends = time.monotonic() + options.seconds
        todo = lacking(pairs, wanted(options))
        for program in dict.fromkeys(name for name, _ in todo):
            fixes = [fix for name, fix in todo if name == program]
            if time.monotonic() >= ends:
                print("out of time: what is missing can be added later", file=sys.stderr)
                break
            pairs += measured(program, fixes, options, windows, ends)
            _write(out, document | {"pairs": pairs})
    _write(out, document | {"pairs": pairs})
    print(table(document | {"pairs": pairs}), end="")


def wanted(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """The pairs asked for, in order."""
    known = PROGRAMS[options.device]
    for program in options.programs or known:
        for fix in options.fixes or known[program].fixes:
            yield program, fix


def again(pairs: list[Pair], windows: Path, device: str) -> list[Pair]:
    """Pairs with predictions by the model as it is now, where their window was kept."""
    found: list[Pair] = []
    made: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        folder = windows / _folder(device, pair["program"])
        if not (folder / "rows.npy").exists():
            found.append(pair)
            continue
        if pair["program"] not in made:
            fixes = [one["fix"] for one in pairs if one["program"] == pair["program"]]
            made[pair["program"]] = promises(folder, fixes)
        found.append(with_promise(pair, made[pair["program"]][pair["fix"]]))
    return found


def measured(
    program: str, fixes: list[str], options: argparse.Namespace, windows: Path, ends: float
) -> list[Pair]:
    """The pairs of a program: its window, then rounds of it and of each fix in turn.

    A round that time cuts short counts for the fixes it came to; those never come to are left out.
    """
    words = arguments(program, options.device)
    folder = windows / _folder(options.device, program)
    folder.parent.mkdir(parents=True, exist_ok=True)
    disturbed: float | None = 0.0
    if not (folder / "rows.npy").exists():
        if options.made:
            return []
        _say(program, "with a window")
        problem, disturbed = undisturbed(folder, words, options, window=True)
        if problem:
            print(problem, file=sys.stderr)
            return []
    promised = promises(folder, fixes)
    base: list[list[float]] = []
    fixed: dict[str, list[list[float]]] = {fix: [] for fix in fixes}
    why: dict[str, list[str]] = {fix: [] for fix in fixes}
    cores: list[float | None] = [disturbed]
    usual: float | None = None
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(options.rounds):
            for fix in ("", *fixes):
                if (fix and why[fix]) or time.monotonic() >= ends:
                    continue
                if options.made:
                    run = options.made / _run(options.device, program, fix, turn)
                    if not (run / "run.json").exists():
                        continue
                    problem, disturbed = ended(run), None
                else:
                    _say(program, f"{fix or 'unchanged'}, round {turn + 1}")
                    run = Path(scratch) / "run"
                    problem, disturbed = undisturbed(run, words, options, fix)
                cores.append(disturbed)
                if problem and fix:
                    why[fix] = [problem]
                elif fix and unfit(run):
                    why[fix] = unfit(run)
                elif not problem:
                    times, samples = step_times(run)
                    usual = usual if fix else samples
                    if times:
                        (fixed[fix] if fix else base).append(alike(times, samples, usual))
    return [
        judged(
            {
                "program": program, "fix": fix, "half": half(options.device, program, fix),
                "promise": promised[fix], "base": base, "fixed": fixed[fix], "unfit": why[fix],
                "others": None if None in cores else max(n for n in cores if n is not None),
            }
        )
        for fix in fixes
        if base and (fixed[fix] or why[fix])
    ]  # fmt: skip


def undisturbed(
    folder: Path, words: list[str], options: argparse.Namespace, fix: str = "", window: bool = False
) -> tuple[str, float]:
    """A run during which others left the cores alone, or the last of some that they did not.

    Why it failed, empty where it ended well; and how many cores others kept busy.
    """
    for _ in range(_TRIES):
        calm(options.others, _PATIENCE_S)
        others = Others()
        problem = observed(folder, words, options.device, fix, window)
        cores = others.cores()
        if problem or cores <= options.others:
            break
        _say(folder.name, f"others kept {cores:.1f} cores busy, again")
    return problem, cores


def asked() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--programs", type=_names, help="names, joined by + [all]")
    add("--fixes", type=_names, help="as `run --fix` takes them, joined by + [each program's own]")
    add("--rounds", type=int, default=3, help="runs of each [3]")
    add("--seconds", type=float, default=3600.0, help="no run begins after that [3600]")
    add("--others", type=float, metavar="CORES", help="[0.3; of a GPU's runs: any]")
    add("--out", type=Path, help="[benchmarks/results/predictions-<device>.json]")
    add("--again", action="store_true", help="measure all anew, whatever the results have")
    add("--windows", type=Path, metavar="FOLDER", help="keep the recorded runs there")
    add("--made", type=Path, metavar="FOLDER", help="read runs that lie there: see _run")
    add("--table", type=Path, metavar="FILE.json", help="only print the table")
    options = parser.parse_args()
    if options.others is None:
        options.others = 0.3 if options.device == "cpu" else float("inf")
    known = PROGRAMS[options.device]
    for name in options.programs or ():
        if name not in known:
            parser.error(f"{name} is none of: {' + '.join(known)}")
    return options


def _names(text: str) -> list[str]:
    return text.split("+")


def _folder(device: str, program: str) -> str:
    return f"{device}-{program}".replace(", ", "-").replace(" ", "_")


def _run(device: str, program: str, fix: str, turn: int) -> str:
    """How `--made` names the run of a fix (empty: none) in a round, from 0."""
    return f"{_folder(device, program)}--{fix or 'unchanged'}--{turn}"


def _say(program: str, what: str) -> None:
    print(f"{program}: {what} …", file=sys.stderr, flush=True)


def _write(out: Path, document: dict[str, Any]) -> None:
    out.write_text(json.dumps(document, indent=1) + "\n")


def _without_folders(word: str) -> str:
    return Path(word).name if os.sep in word else word


if __name__ == "__main__":
    main()
