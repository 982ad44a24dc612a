"""Which fixes go with which programs, and with each other: the table of docs/fixes.md.

python benchmarks/fix_compatibility.py --pairs                  run all, write the results, print
python benchmarks/fix_compatibility.py --device cuda --pairs    the same on a GPU
python benchmarks/fix_compatibility.py --pairs --missing        only what the results lack yet
python benchmarks/fix_compatibility.py --table FILE.json        print the table of earlier results
python benchmarks/fix_compatibility.py --docs                   put the tables into docs/fixes.md

With --programs only some are run, and with --missing only the cells that have no result yet or a
faulty one: the others' results in the file stay as they are.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import import_module
from pathlib import Path
from typing import Any

from _about import about
from _fix_cells import FAULTS, LATE, kept, lacking, merged, without_stale
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
    if (options.programs or options.missing) and out.exists():
        earlier = json.loads(out.read_text())
        known = earlier["programs"]
        document["programs"] = {p: without_stale(known[p], cells.together()) for p in known}
        document["command"] = f"{earlier['command']}; {document['command']}"
    sets = [*cells.singles(), *cells.variants(options.device), *cells.together()]
    sets += cells.pairs(options.device) if options.pairs else []
    asked = dict.fromkeys(options.programs or cells.shapes(), sets)
    if options.missing:
        known = document["programs"]
        asked = {p: lacking(known.get(p, {}), sets, cells.judged_by) for p in asked}
        asked = {program: fixes for program, fixes in asked.items() if fixes}
    out.write_text(json.dumps(document) + "\n")
    for program, found in ran(cells, asked, options):
        before = document["programs"].get(program) if options.missing else None
        document["programs"][program] = merged(before, found) if before else kept(found)
        document["programs"] = dict(sorted(document["programs"].items()))
        out.write_text(json.dumps(document) + "\n")
        report(program, found)
    return document


def ran(
    cells: Any, asked: dict[str, list[Any]], options: argparse.Namespace
) -> Iterator[tuple[str, list[Any]]]:
    """Each program's cells, as programs end. Raises what a program raised, at the end."""
    until = time.monotonic() + options.seconds
    waiting = list(asked)

    def one(program: str) -> list[Any]:
        left = until - time.monotonic()
        share = left * min(1.0, options.at_once / len(waiting))
        waiting.remove(program)
        how = cells.How(
            device=options.device,
            jobs=max(1, options.jobs // options.at_once),
            timeout_s=options.timeout,
            seconds=share,
            skip_idle=options.skip_idle,
            one_stage=options.missing,
            command_line=options.command_line,
        )
        return list(cells.run_cells(program, asked[program], how))

    with ThreadPoolExecutor(options.at_once) as pool:
        running = {pool.submit(one, program): program for program in asked}
        for ended in as_completed(running):
            if ended.exception() is None:
                yield running[ended], ended.result()
    for ended in running:
        ended.result()


def report(program: str, found: list[Any]) -> None:
    """Say that a program is done, and what of it is not as it must be."""
    ready = sum(cell.state != LATE for cell in found)
    print(f"{program}: {ready} of {len(found)}", file=sys.stderr, flush=True)
    for cell in found:
        if cell.state in FAULTS:
            print(f"  {cell.state}: {'+'.join(cell.fixes)}: {cell.why}", file=sys.stderr)


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
    parser.add_argument("--missing", action="store_true", help="only cells that the file lacks")
    parser.add_argument("--at-once", type=int, default=1, help="programs that share the jobs [1]")
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
    from stepscope.fixes.registry import FIX_NAMES

    schema = "stepscope.fix_compatibility/1"
    head = about(schema, "fix_compatibility.py", device=options.device)
    return head | {"fixes": list(FIX_NAMES), "programs": {}}


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as problem:
        sys.exit(str(problem))
