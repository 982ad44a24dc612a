"""What `stepscope compare` claims of processes that do not differ, and of changes put into them.

python benchmarks/compare_aa.py --processes 16             record series, judge, write, print
python benchmarks/compare_aa.py --state busy --keep        add series to those recorded before
python benchmarks/compare_aa.py --again                    judge the recorded series once more

Series go to results/aa-series.npz, the counts of verdicts to results/compare-aa.json. `--state`
says how the machine was meanwhile: series of two states are never held against each other.
"""

import argparse
import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from _aa_judge import judged, table
from _aa_record import Series, recorded
from _about import SOURCE, about

RESULTS = Path(__file__).resolve().parent / "results"
SERIES, VERDICTS = "aa-series.npz", "compare-aa.json"


def main() -> None:
    sys.path.insert(0, str(SOURCE))  # this checkout is measured, installed or not
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=16, help="of each program [16]")
    parser.add_argument("--state", default="quiet", help="of the machine, in a word [quiet]")
    parser.add_argument("--keep", action="store_true", help="keep what was recorded before")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--again", action="store_true", help="judge what was recorded")
    parser.add_argument("--out", type=Path, default=RESULTS, help="[benchmarks/results]")
    options = parser.parse_args()
    made = about("stepscope.compare-aa/1", "compare_aa.py", device=options.device)
    if options.again:
        made = {**json.loads((options.out / VERDICTS).read_text()), "programs": []}
    else:
        path = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{SOURCE}{os.pathsep}{path}" if path else str(SOURCE)
        found: defaultdict[str, list[Series]] = defaultdict(list)
        if options.keep and (options.out / SERIES).exists():
            found.update(load(options.out / SERIES))
        for name, series in recorded(options.processes, options.device):
            found[f"{name}, {options.state}"].append(series)
            save(options.out / SERIES, found)
    document = {**made, **judged(load(options.out / SERIES))}
    (options.out / VERDICTS).write_text(json.dumps(document, indent=1) + "\n")
    print(table(document), end="")


def save(path: Path, found: dict[str, list[Series]]) -> None:
    """One array a process, named by its program and number."""
    arrays: dict[str, Any] = {
        f"{name}-{number:02d}": series
        for name, several in found.items()
        for number, series in enumerate(several)
    }
    part = path.with_suffix(".part.npz")
    np.savez_compressed(part, **arrays)
    part.replace(path)


def load(path: Path) -> dict[str, list[Series]]:
    """The series of each program and state, in the order in which they were recorded."""
    found: defaultdict[str, list[Series]] = defaultdict(list)
    with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
            found[key.rpartition("-")[0]].append(arrays[key])
    return dict(found)


if __name__ == "__main__":
    main()
