"""`stepscope bench` beside what others have published: ratios, since their machines were others.

python benchmarks/bench_published.py [CASE…]              on a machine with a GPU
python benchmarks/bench_published.py --table FILE.json    the tables of earlier results

Every case is one command line. With names only those cases are run, and the others' results in
the file stay as they are. With --work a case that ran out of time goes on where it stopped.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _about import SOURCE, about, kept
from _published_cases import CASES
from _published_table import table

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


def main() -> None:
    sys.path.insert(0, str(SOURCE))
    options = arguments()
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    out = options.out or RESULTS / "bench-published.json"
    work = str(options.work)
    document = about(
        "stepscope.published/1", "bench_published.py", device="cuda",
        spelt=lambda word: "DIR" if word == work else word,
    )  # fmt: skip
    document["cases"] = {}
    if options.cases:
        kept(out, document, "cases")
    for name in options.cases or CASES:
        begun = time.monotonic()
        if options.work:
            found = measured(name, options.timeout, options.work / name)
        else:
            with tempfile.TemporaryDirectory() as folder:
                found = measured(name, options.timeout, Path(folder) / "bench")
        document["cases"][name] = found
        out.write_text(json.dumps(document, indent=1) + "\n")
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    print(table(document), end="")


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"[{' '.join(CASES)}]")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for a case [600]")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep what is measured there")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}: there are {', '.join(CASES)}")
    return options


def measured(name: str, timeout_s: float, folder: Path) -> dict[str, Any]:
    """What the case's command told; `failed` where it did not end well."""
    command = ["bench", *CASES[name].command]
    shown = " ".join(["stepscope", *command])
    whole = [sys.executable, "-m", "stepscope.cli.main", *command, "--json", "--out", str(folder)]
    try:
        done = subprocess.run(
            whole, capture_output=True, text=True, check=False, timeout=timeout_s,
            env=_environment(),
        )  # fmt: skip
    except subprocess.TimeoutExpired as problem:
        said = problem.stderr.decode(errors="replace")[-600:] if problem.stderr else ""
        return {"command": shown, "failed": f"{said}\ntook more than {timeout_s:g} s"}
    if done.returncode:
        return {"command": shown, "failed": done.stderr.strip()[-600:]}
    told = json.loads(done.stdout)
    kept = {key: told[key] for key in ("points", "study", "noise_floor", "notes") if key in told}
    return {"command": shown, **kept}


def _environment() -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{path}" if path else str(SOURCE)}


if __name__ == "__main__":
    main()
