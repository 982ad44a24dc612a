"""Trials started by themselves beside trials forked from a process that has imported torch.

python benchmarks/trial_start.py [--device cpu|cuda] [--pairs N]
python benchmarks/trial_start.py --table FILE.json

The same program in turn, both ways: what a trial takes besides its steps, and whether its steps
and losses are the same.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from _about import SOURCE, about
from tune_grid import GRIDS, trials_of

HERE = Path(__file__).resolve().parent
STEPS = {"cpu": 100, "cuda": 200}
PROGRAMS = {"cpu": "cpu-decode", "cuda": "resnet18"}
WAYS = ("by itself", "forked")


def main() -> None:
    sys.path.insert(0, str(SOURCE))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=tuple(STEPS), default="cpu")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    document = about("stepscope.trial-start/1", "trial_start.py", device=options.device)
    document["program"] = GRIDS[PROGRAMS[options.device]][0]
    document["trials"] = measured(document["program"], options.device, options.pairs)
    out = options.out or HERE / "results" / f"trial-start-{options.device}.json"
    out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document), end="")


def measured(program: str, device: str, pairs: int) -> list[dict[str, Any]]:
    """Trials both ways in turn; the first of each, which finds cold caches, is left out."""
    from stepscope.measure.trial.record import TrialRequest

    request = TrialRequest(steps=STEPS[device], proof=True)
    made = []
    with trials_of(program, device) as runner:
        for _ in range(pairs + 1):
            for way in WAYS:
                runner.forking = way == "forked"
                made.append((way, runner(request)))
    return [_told(way, trial) for way, trial in made[len(WAYS) :]]


def _told(way: str, trial: Any) -> dict[str, Any]:
    if not trial.ok:
        raise SystemExit(f"a trial failed: {trial.failure}")
    steps_s = trial.steps * trial.mean_ms / 1e3
    return {
        "way": way,
        "seconds": trial.seconds,
        "besides_s": trial.seconds - steps_s,
        "step_ms": trial.mean_ms,
        "losses": list(trial.losses),
    }


def table(document: dict[str, Any]) -> str:
    """As Markdown."""
    lines = [
        f"`{document['program']}`",
        "",
        "| trial | besides its steps | step |",
        "|---|--:|--:|",
    ]
    for way in WAYS:
        made = [one for one in document["trials"] if one["way"] == way]
        besides, step = (_span([one[key] for one in made]) for key in ("besides_s", "step_ms"))
        lines.append(f"| {way} | {besides} s | {step} ms |")
    losses = {tuple(one["losses"]) for one in document["trials"]}
    same = "the same" if len(losses) == 1 else f"of {len(losses)} kinds"
    return "\n".join([*lines, "", f"Losses of all {len(document['trials'])} are {same}."]) + "\n"


def _span(values: list[float]) -> str:
    return f"{fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
