"""Which fixes go with which programs, and with each other: the table of docs/fixes.md.

python benchmarks/fix_compatibility.py --pairs                  run all, write the results, print
python benchmarks/fix_compatibility.py --device cuda --pairs    the same on a GPU
python benchmarks/fix_compatibility.py --table FILE.json        print the table of earlier results
python benchmarks/fix_compatibility.py --docs                   put the tables into docs/fixes.md

With --programs only some are run, and the others' results in the file stay as they are.
"""

import argparse
import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from _about import about
from _fix_table import placed, table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DOCS = ROOT / "docs" / "fixes.md"


def main() -> None:
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "support")]
    options = arguments()
    if options.docs:
        DOCS.write_text(placed(DOCS.read_text(), results()))
    elif options.table:
        print(table(json.loads(options.table.read_text())), end="")
    else:
        print(table(measured(options)), end="")


def results() -> list[dict[str, Any]]:
    """What the committed results are, the CPU's first."""
    files = (HERE / "results" / f"fix-compatibility-{name}.json" for name in ("cpu", "cuda"))
    return [json.loads(file.read_text()) for file in files if file.exists()]


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Run the cells, writing what is known after each program."""
    cells = import_module("compatibility")
    out = options.out or HERE / "results" / f"fix-compatibility-{options.device}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    document = described(options)
    if options.programs and out.exists():
        earlier = json.loads(out.read_text())
        document["programs"] = earlier["programs"]
        document["command"] = f"{earlier['command']}; {document['command']}"
    sets = [*cells.singles(), *cells.variants(options.device), *cells.together()]
    sets += cells.pairs() if options.pairs else []
    chosen = options.programs or cells.shapes()
    until = time.monotonic() + options.seconds
    for place, program in enumerate(chosen):
        share = (until - time.monotonic()) / (len(chosen) - place)
        how = cells.How(
            device=options.device,
            jobs=options.jobs,
            timeout_s=options.timeout,
            seconds=share,
            skip_idle=options.skip_idle,
            command_line=options.command_line,
        )
        begun = time.monotonic()
        found = cells.run_cells(program, sets, how)
        document["programs"][program] = kept(found)
        out.write_text(json.dumps(document) + "\n")
        broken = [cell for cell in found if cell.state in ("broken", "stops")]
        took = time.monotonic() - begun
        print(f"{program}: {len(found)} of {len(sets)}, {took:.0f} s", file=sys.stderr, flush=True)
        for cell in broken:
            print(f"  {cell.state}: {'+'.join(cell.fixes)}: {cell.why}", file=sys.stderr)
    return document


def kept(found: list[Any]) -> dict[str, Any]:
    """The cells of a program: its fixes → state, how many took hold, and the number of the why.

    `run` is how many were found out by a run: others follow from what their fixes say.
    """
    whys: dict[str, int] = {}
    cells = {
        "+".join(cell.fixes): [cell.state, cell.held, whys.setdefault(cell.why, len(whys))]
        for cell in found
    }
    run = sum(cell.seconds > 0 for cell in found)
    return {"run": run, "whys": list(whys), "cells": cells}


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pairs", action="store_true", help="every two fixes together, too")
    parser.add_argument("--programs", type=lambda text: text.split(","), help="only these")
    parser.add_argument("--seconds", type=float, default=3600.0, help="for everything [3600]")
    parser.add_argument("--timeout", type=float, help="for one cell [60; on cuda 180]")
    parser.add_argument("--jobs", type=int, help="cells at a time [2; on cuda, 3/4 of the cores]")
    parser.add_argument(
        "--skip-idle",
        action="store_true",
        help="no run of pairs with a fix that had nothing to do alone",
    )
    parser.add_argument(
        "--command-line", action="store_true", help="each cell by `stepscope run`, which is slower"
    )
    parser.add_argument("--out", type=Path, help="[…/results/fix-compatibility-<cpu|cuda>.json]")
    parser.add_argument("--table", type=Path, metavar="FILE.json", help="only print the table")
    parser.add_argument("--docs", action="store_true", help="only write the tables into the docs")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    options.jobs = options.jobs or (max(2, cores * 3 // 4) if options.device == "cuda" else 2)
    options.timeout = options.timeout or (180.0 if options.device == "cuda" else 60.0)
    return options


def described(options: argparse.Namespace) -> dict[str, Any]:
    """The head of the results."""
    from stepscope.fixes.catalogue import NAMES

    schema = "stepscope.fix_compatibility/1"
    head = about(schema, "fix_compatibility.py", device=options.device)
    return head | {"fixes": list(NAMES), "programs": {}}


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as problem:
        sys.exit(str(problem))
