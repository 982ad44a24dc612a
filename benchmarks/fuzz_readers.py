"""Damaged traces, exports and folders through `analyze`, `show`, `report` and `compare`.

python benchmarks/fuzz_readers.py trace 0 5000     seeds 0 to 4999 of a kind, added to the results
python benchmarks/fuzz_readers.py --table          what all runs so far came to
python benchmarks/fuzz_readers.py trace 17 --show  one case: its command, damage and end

Kinds: trace, export, run, result (tests/support/fuzz). A command must answer, or refuse in one line
with exit code 2: no traceback or warning, within 20 s and 1 GiB. Runs at other seeds add up; seeds
run again have the end they came to last.
"""

import argparse
import faulthandler
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _about import about

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent / "tests" / "support")]

RESULTS = HERE / "results" / "fuzz.json"
_BLOCK = 250
"""Cases of one process."""
_SHOWN = 20
_STUCK_S = 60
"""The process of a case that not even a signal ends is ended."""


def main() -> None:
    options = _arguments()
    if options.kind is None:
        print(table(json.loads(options.out.read_text())), end="")
    elif options.show:
        _show(options.kind, options.first)
    else:
        _run(options)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", nargs="?", choices=["trace", "export", "run", "result"])
    parser.add_argument("first", nargs="?", type=int, default=0)
    parser.add_argument("last", nargs="?", type=int)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--seconds", type=float, default=270.0, help="stop by then")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.table:
        options.kind = None
    elif options.kind is None or (options.last is None and not options.show):
        parser.error("name a kind and two seeds, or --table")
    return options


def _run(options: argparse.Namespace) -> None:
    began, first, blocks = time.monotonic(), options.first, []
    while first < options.last and time.monotonic() - began < options.seconds:
        last = min(first + _BLOCK, options.last)
        blocks.append(_in_a_process(options.kind, first, last))
        first = last
        failed = sum(len(block["failures"]) for block in blocks)
        print(f"{options.kind} {options.first}–{first}: {failed} failed", flush=True)
    for failure in [one for block in blocks for one in block["failures"]][:_SHOWN]:
        print(f"\n{options.kind} {failure['seed']}: {failure['command']}\n{failure['why']}")
    _keep(options, first, blocks, time.monotonic() - began)


def _keep(
    options: argparse.Namespace, last: int, blocks: list[dict[str, Any]], seconds: float
) -> None:
    """Add a range of seeds to the results. Part of one that was run before is noted in that, and
    decides which of its seeds fail; any other that was run before is replaced."""
    document = about("stepscope.fuzz/1", "fuzz.py") | {"ranges": []}
    document["command"] = "python benchmarks/fuzz_readers.py KIND FIRST LAST"
    if options.out.exists():
        document["ranges"] = json.loads(options.out.read_text())["ranges"]
    found = {
        "kind": options.kind,
        "first": options.first,
        "last": last,
        "seconds": round(seconds, 1),
        "longest_s": max(block["longest_s"] for block in blocks),
        "largest_mb": max(block["largest_mb"] for block in blocks),
        "answered": sum(block["answered"] for block in blocks),
        "failures": [one["seed"] for block in blocks for one in block["failures"]],
        "commit": document["versions"]["commit"],
    }
    seeds = range(options.first, last)
    whole = next((one for one in document["ranges"] if _contains(one, found)), None)
    if whole is not None:
        failures = [seed for seed in whole["failures"] if seed not in seeds]
        whole["failures"] = sorted([*failures, *found["failures"]])
        whole.setdefault("again", []).append(found)
    else:
        known = [
            one
            for one in document["ranges"]
            if one["kind"] != found["kind"] or one["last"] <= options.first or one["first"] >= last
        ]
        document["ranges"] = sorted([*known, found], key=lambda one: (one["kind"], one["first"]))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")


def _contains(whole: dict[str, Any], part: dict[str, Any]) -> bool:
    """Whether a range holds another and more."""
    outer, inner = (range(one["first"], one["last"]) for one in (whole, part))
    inside = inner[0] in outer and inner[-1] in outer and inner != outer
    return bool(whole["kind"] == part["kind"] and inside)


def _in_a_process(kind: str, first: int, last: int) -> dict[str, Any]:
    """Run cases in a fork: one that kills it is a failure like any other."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        os.close(receiving)
        with os.fdopen(sending, "w") as pipe:
            _cases(kind, range(first, last), pipe)
        os._exit(0)
    os.close(sending)
    found: dict[str, Any] = {"failures": [], "answered": 0, "longest_s": 0.0, "largest_mb": 0}
    seed = first
    with os.fdopen(receiving) as pipe:
        for line in pipe:
            told = json.loads(line)
            seed = told["seed"] + 1
            found["longest_s"] = max(found["longest_s"], told["seconds"])
            found["largest_mb"] = max(found["largest_mb"], told["mb"])
            found["answered"] += told["why"] is None and told["code"] == 0
            if told["why"] is not None:
                found["failures"].append(told)
    _, status = os.waitpid(child, 0)
    if seed < last:
        why = f"the process ended with status {status}"
        found["failures"].append({"seed": seed, "command": "", "why": why})
        rest = _in_a_process(kind, seed + 1, last) if seed + 1 < last else None
        if rest:
            found["failures"] += rest["failures"]
            found["answered"] += rest["answered"]
            for name in ("longest_s", "largest_mb"):
                found[name] = max(found[name], rest[name])
    return found


def _cases(kind: str, seeds: range, pipe: Any) -> None:
    import resource

    from fuzz.calls import verdict
    from fuzz.case import make_case

    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        os.environ |= {"XDG_CACHE_HOME": folder, "HOME": folder}
        os.chdir(folder)
        for seed in seeds:
            faulthandler.dump_traceback_later(_STUCK_S, exit=True)
            case = make_case(kind, seed, Path(folder))
            began = time.monotonic()
            ended = verdict(case.arguments)
            told = {
                "seed": seed,
                "command": f"{' '.join(case.arguments)} ({case.damage})",
                "why": ended.problem,
                "code": ended.code,
                "seconds": round(time.monotonic() - began, 3),
                "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            }
            pipe.write(json.dumps(told) + "\n")
            pipe.flush()


def _show(kind: str, seed: int) -> None:
    from fuzz.calls import verdict
    from fuzz.case import make_case

    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    os.chdir(folder)
    case = make_case(kind, seed, folder)
    print(" ".join(case.arguments), case.damage, sep="\n")
    print(verdict(case.arguments))


def table(document: dict[str, Any]) -> str:
    """Cases, by kind: how many there are, were run again, were answered at first and fail now, the
    longest and the largest."""
    head = "| kind | cases | run again | answered | failed | longest | largest process |"
    lines = [head, "|---" * 7 + "|"]
    for kind in sorted({one["kind"] for one in document["ranges"]}):
        some = [one for one in document["ranges"] if one["kind"] == kind]
        again = [part for one in some for part in one.get("again", [])]
        cases, anew = (sum(one["last"] - one["first"] for one in part) for part in (some, again))
        failed = sum(len(one["failures"]) for one in some)
        answered = sum(one["answered"] for one in some)
        runs = [*some, *again]
        longest, largest = (max(one[n] for one in runs) for n in ("longest_s", "largest_mb"))
        lines.append(
            f"| {kind} | {cases:,} | {anew:,} | {answered:,} | {failed} | {longest:.1f} s"
            f" | {largest:,} MB |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
