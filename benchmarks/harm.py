"""Programs in which things happen at random steps, under plain Python and observed.

python benchmarks/harm.py [--rounds N] [--seed N] [--jobs N]
python benchmarks/harm.py --table FILE.json

A round is one seed of programs/random_events.py: it runs bare and observed, with a kernel window at
a random step, forked from one process that has imported torch. Exit code and output must be the
same, the losses and final weights among it. Seeds begin at --seed. Results are written every 50
rounds, beside those of earlier calls, each with its commit, unless the program has changed since;
of a seed that ran again the last result counts.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _about import SOURCE, about

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "programs" / "random_events.py"
PATIENCE_S = 120.0  # a program that runs for longer hangs
SAME, DIFFERENT, CRASHED, HANGS = "same", "different", "crashed", "hangs"
VOID = "void"  # the bare program fails or does not repeat itself: nothing was tested
REPEATS = 5  # of a bare program that observing seems to have changed
BLOCK = 50  # rounds between two writes of the results


@dataclass(frozen=True)
class Ended:
    """How a program ended: its exit code, negative for a signal and None where it never did."""

    code: int | None
    output: str


def main() -> None:
    sys.path.insert(0, str(SOURCE))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="rounds at a time [1]")
    parser.add_argument("--minutes", type=float, help="begin no round after that long")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "harm.json")
    parser.add_argument("--table", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    document = about("stepscope.harm/2", "harm.py", device="cpu")
    document["program"] = hashlib.sha256(PROGRAM.read_bytes()).hexdigest()[:12]
    document["calls"] = earlier_calls(options.out, document["program"])
    call = {"command": document.pop("command"), "date": document.pop("date")}
    call["commit"] = document["versions"].pop("commit")
    document["calls"].append(call)
    found: dict[int, str] = {}
    until = time.monotonic() + 60 * (options.minutes or float("inf"))
    seeds = range(options.seed, options.seed + options.rounds)
    blocks = [seeds[n : n + BLOCK] for n in range(0, len(seeds), BLOCK)]
    with ProcessPoolExecutor(options.jobs) as pool:
        for part in pool.map(rounds, blocks, [until] * len(blocks)):
            found |= part
            call |= summary(found)
            options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document), end="")


def earlier_calls(out: Path, program: str) -> list[dict[str, Any]]:
    """Those whose rounds were of the same program."""
    earlier = json.loads(out.read_text()) if out.exists() else {}
    calls: list[dict[str, Any]] = earlier.get("calls", [])
    return calls if earlier.get("program") == program else []


def summary(found: dict[int, str]) -> dict[str, Any]:
    """The rounds of a call: its seeds as first and last of each stretch, and which were not the
    same."""
    seeds = sorted(found)
    breaks = [n for n in range(1, len(seeds)) if seeds[n] != seeds[n - 1] + 1]
    ends = zip([0, *breaks], [*breaks, len(seeds)], strict=True)
    return {
        "seeds": [[seeds[first], seeds[end - 1]] for first, end in ends if end],
        "others": {str(seed): found[seed] for seed in seeds if found[seed] != SAME},
    }


def rounds_of(calls: list[dict[str, Any]]) -> dict[int, str]:
    """What became of each round of some calls, by its seed."""
    found: dict[int, str] = {}
    for call in calls:
        found |= {n: SAME for first, last in call["seeds"] for n in range(first, last + 1)}
        found |= {int(seed): became for seed, became in call["others"].items()}
    return found


def rounds(seeds: range, until: float) -> dict[int, str]:
    """What became of each round, by its seed."""
    from stepscope.launch.fork_server import ForkServer

    found: dict[int, str] = {}
    if time.monotonic() > until:
        return found
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    with tempfile.TemporaryDirectory() as scratch:
        server = ForkServer(environ, HERE)
        for seed in seeds:
            if time.monotonic() > until:
                break
            folder = Path(scratch) / str(seed)
            pair = [_run(server, seed, folder, observed) for observed in (False, True)]
            became = judged(*pair)
            if became in (DIFFERENT, CRASHED):
                again = [_run(server, seed, folder, observed=False) for _ in range(REPEATS)]
                became = became if {*again} == {pair[0]} else VOID
            found[seed] = became
            if became != SAME:
                print(f"seed {seed}: {became}: {pair}", file=sys.stderr, flush=True)
            if any(ended.code is None for ended in pair):
                server.close()
                server = ForkServer(environ, HERE)
        server.close()
    return found


def judged(bare: Ended, observed: Ended) -> str:
    """What observing did to a program."""
    if bare.code is None or "\nends " not in bare.output:  # torch's recorder of stacks may crash
        return VOID
    if bare == observed:
        return SAME
    if observed.code is None:
        return HANGS
    if observed.code != bare.code and observed.code < 0:
        return CRASHED
    return DIFFERENT


def _run(server: Any, seed: int, folder: Path, observed: bool) -> Ended:
    from stepscope.launch.program import Program
    from stepscope.record.probe_options import ProbeOptions

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    probe = ""
    if observed:
        chance = random.Random(seed)
        options = ProbeOptions(
            str(folder),
            time.monotonic_ns(),
            window=chance.randrange(1, 5),
            window_at=chance.randrange(2, 14),
        )
        probe = options.to_json()
    with open(folder / "output", "wb") as output, open(os.devnull, "wb") as nowhere:
        program = Program(str(PROGRAM), (str(seed),), module=False)
        process = server.start(program, probe, output, folder, errors=nowhere)
        if process is None:
            sys.exit("the process that has imported torch is gone")
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
    return Ended(code, (folder / "output").read_text(errors="replace"))


def table(document: dict[str, Any]) -> str:
    counts = Counter(rounds_of(document["calls"]).values())
    head = f"rounds {sum(counts.values()):,}"
    cells = [f"{name} {counts[name]:,}" for name in (CRASHED, HANGS, DIFFERENT, VOID)]
    return " · ".join([head, *cells]) + "\n"


if __name__ == "__main__":
    main()
