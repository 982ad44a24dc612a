"""What observing costs: the same steps bare and observed, interleaved.

python benchmarks/overhead.py --device cpu          measure, write the results, print the table
python benchmarks/overhead.py --programs mlp,trainer --seconds 200
python benchmarks/overhead.py --docs                also write the summary into docs/overhead.md
python benchmarks/overhead.py --table FILE.json     print the table of earlier results
python benchmarks/overhead.py --anatomy             print the microseconds of each hook
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _about import about, kept
from _overhead_children import SOURCE, Setting, child, cores_for, program
from _overhead_measure import measure
from _overhead_table import anatomy_table, table, with_summary

RESULTS = Path(__file__).resolve().parent / "results"
DOCS = SOURCE.parent / "docs" / "overhead.md"
FULL_S, QUICK_S = 480.0, 200.0
USUAL = [
    *("cuda graph", "mlp", "cnn", "mapped decoder"),  # the first one takes no time on a CPU
    *("lightning", "trainer", "compiled"),
]
PROGRAMS = [*USUAL, "wide cnn"]


def main() -> None:
    sys.path.insert(0, str(SOURCE))  # this checkout is measured, installed or not
    options = arguments()
    if options.table:
        show(json.loads(options.table.read_text()), options.docs)
        return
    cores = cores_for(options.device)
    if options.anatomy:
        command = [*program("anatomy.py"), "--device", options.device]
        print(anatomy_table(child([*command, "--cores", *map(str, cores)], 60)), end="")
        return
    out = options.out or RESULTS / f"overhead-{'gpu' if options.device == 'cuda' else 'cpu'}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    document = described(options.device, cores)
    if options.keep:
        kept(out, document, "results")
    for result in results(options, cores):
        others = [one for one in document["results"] if one["program"] != result["program"]]
        document["results"] = [*others, result]
        out.write_text(json.dumps(document) + "\n")
    show(document, options.docs)


def show(document: dict[str, Any], docs: bool) -> None:
    """Print all of it, and write its summary into the docs if asked."""
    print(table(document), end="")
    if docs:
        DOCS.write_text(with_summary(DOCS.read_text(), document))


def results(options: argparse.Namespace, cores: list[int]) -> Iterator[dict[str, Any]]:
    """One result per program, within the time given for all of them."""
    until = time.monotonic() + options.seconds
    for place, name in enumerate(options.programs):
        left = until - time.monotonic()
        if left <= 0:
            yield {"program": name, "missing": "no time was left"}
            continue
        share = left / (len(options.programs) - place)
        print(f"{name}, {share:.0f} s …", file=sys.stderr, flush=True)
        try:
            setting = Setting(name, options.device, cores)
            yield measure(setting, share, options.pairs, options.blocks)
        except RuntimeError as problem:  # what the others show stands
            yield {"program": name, "missing": str(problem).splitlines()[-1]}


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    usual = ",".join(USUAL)
    parser.add_argument("--programs", type=_names, default=USUAL, help=f"[{usual}]")
    parser.add_argument("--seconds", type=float, help=f"for everything [{FULL_S:.0f}]")
    parser.add_argument("--pairs", type=int, default=50, help="of processes, at most; 0: none [50]")
    parser.add_argument("--blocks", type=int, default=2000, help="of each kind, at most [2000]")
    parser.add_argument("--quick", action="store_true", help=f"[--seconds {QUICK_S:.0f}]")
    parser.add_argument("--keep", action="store_true", help="keep other programs' results")
    parser.add_argument("--docs", action="store_true", help="write the summary into the docs")
    parser.add_argument("--out", type=Path, help="[benchmarks/results/overhead-<cpu|gpu>.json]")
    parser.add_argument("--table", type=Path, metavar="FILE.json", help="only print the table")
    parser.add_argument("--anatomy", action="store_true", help="only time the hooks themselves")
    options = parser.parse_args()
    if options.seconds is None:
        options.seconds = QUICK_S if options.quick else FULL_S
    return options


def _names(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= set(PROGRAMS):
        raise argparse.ArgumentTypeError(f"programs are {', '.join(PROGRAMS)}")
    return names


def described(device: str, cores: list[int]) -> dict[str, Any]:
    """The head of the results."""
    head = about("stepscope.overhead/2", "overhead.py", device=device)
    return head | {"cores": cores, "threads": 1 if device == "cpu" else None, "results": []}


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as problem:
        sys.exit(str(problem))
