"""stepscope's times beside those of torch.utils.benchmark and triton.testing.do_bench.

python benchmarks/bench_agreement.py --device cuda         measure, write the results, print them
python benchmarks/bench_agreement.py --table FILE.json     print the table of earlier results

The same functions in the same process; clocks take turns.
"""

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

from _about import SOURCE, about
from _agreement_functions import OURS, Action, clocks, functions
from _agreement_table import agreement, table

RESULTS = Path(__file__).resolve().parent / "results"
_SEED = 4


def main() -> None:
    sys.path.insert(0, str(SOURCE))  # this checkout is measured, installed or not
    options = arguments()
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    import torch

    from stepscope.stats.verdict import MAX_SAME_DIFFERENCE, MIN_DIFFERENCE

    if options.device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("torch does not see a CUDA device: --device cpu")
    device = "gpu" if options.device == "cuda" else "cpu"
    out = options.out or RESULTS / f"bench-agreement-{device}.json"
    document = about("stepscope.agreement/1", "bench_agreement.py", device=options.device)
    known, notes = clocks(options.device, options.seconds)
    document |= {
        "least": MIN_DIFFERENCE,
        "most": MAX_SAME_DIFFERENCE,
        "notes": notes,
        "results": [],
    }
    for name, action in functions(options.device).items():
        print(f"{name} …", file=sys.stderr, flush=True)
        document["results"].append({"function": name} | timed(action, known, options.rounds))
        out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document), end="")


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=7, help="of each clock and function [7]")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each clock's turn [0.5]")
    parser.add_argument("--out", type=Path, help="[…/results/bench-agreement-<cpu|gpu>.json]")
    parser.add_argument("--table", type=Path, metavar="FILE.json", help="only print the table")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("noise is not known from less than 2 rounds")
    return options


def timed(action: Action, known: dict[str, Any], rounds: int) -> dict[str, Any]:
    """What each clock says in each round, and whether they agree; a first round is a warm-up."""
    draw = random.Random(_SEED)
    seconds: dict[str, list[float]] = {name: [] for name in known}
    for number in range(rounds + 1):
        order = list(known)
        draw.shuffle(order)
        for name in order:
            took = known[name](action)
            if number:
                seconds[name].append(took)
    return agreement(seconds, OURS)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as problem:
        sys.exit(str(problem))
