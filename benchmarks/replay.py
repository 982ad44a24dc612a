"""Calibrated replay against the bare step: does the what-if model know the unchanged program?

python benchmarks/replay.py --device cpu                    run, replay, write, print the table
python benchmarks/replay.py --programs "mlp+cnn"            only some
python benchmarks/replay.py --table FILE.json               the table of earlier results

Each program runs once under `stepscope run`; what is known is written after each. With `--made
FOLDER` runs that lie there are read instead: those that predictions.py keeps in its `--windows`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _about import SOURCE, about
from _replay_measure import measured
from _replay_programs import PROGRAMS, arguments
from _replay_table import table

RESULTS = Path(__file__).resolve().parent / "results"
LONGEST_S = 240


def main() -> None:
    sys.path.insert(0, str(SOURCE))  # this checkout is measured, installed or not
    options = asked()
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    out = options.out or RESULTS / f"replay-{options.device}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    head = about("stepscope.replay/1", "replay.py", _without_folders, options.device)
    if options.made and out.exists():  # where and when the runs were made, it says already
        earlier = json.loads(out.read_text())
        head = earlier | {"command": f"{earlier['command']}; {head['command']}"}
    document = head | {"results": []}
    for name in options.programs or PROGRAMS[options.device]:
        print(f"{name} …", file=sys.stderr, flush=True)
        document["results"].append({"program": name, **result(name, options)})
        out.write_text(json.dumps(document) + "\n")
    print(table(document), end="")


def _without_folders(word: str) -> str:
    return Path(word).name if os.sep in word else word


def result(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a program's run gives, or `problem`: why it gives nothing."""
    short = name.replace(", ", "-").replace(" ", "_")
    if options.made:
        return _read(options.made / f"{options.device}-{short}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.keep or scratch) / short
        command = [sys.executable, "-m", "stepscope.cli.main", "run", "--quiet", "--force"]
        words = arguments(name, options.device)
        try:
            done = subprocess.run(
                [*command, "--out", str(folder), *words],
                env=environment(options.device),
                cwd=scratch,
                capture_output=True,
                timeout=LONGEST_S,
            )
            if done.returncode:
                last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
                return {"problem": f"exit code {done.returncode}: {' '.join(last)}"}
        except subprocess.TimeoutExpired as problem:
            return {"problem": str(problem)}
        return _read(folder)


def _read(folder: Path) -> dict[str, Any]:
    try:
        return measured(folder)
    except (OSError, RuntimeError) as problem:
        return {"problem": str(problem)}


def environment(device: str) -> dict[str, str]:
    """The child's: this checkout first; on the CPU one thread, which other load disturbs least."""
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    threads = {"OMP_NUM_THREADS": "1"} if device == "cpu" else {}
    return {**threads, **os.environ, "PYTHONPATH": path}


def asked() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--programs", type=lambda text: text.split("+"), help="names, joined by + [all]"
    )
    parser.add_argument("--out", type=Path, help="[benchmarks/results/replay-<device>.json]")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the run folders there")
    parser.add_argument("--made", type=Path, metavar="FOLDER", help="read the runs that lie there")
    parser.add_argument("--table", type=Path, metavar="FILE.json", help="only print the table")
    options = parser.parse_args()
    known = PROGRAMS[options.device]
    for name in options.programs or ():
        if name not in known:
            parser.error(f"{name} is none of: {' + '.join(known)}")
    return options


if __name__ == "__main__":
    main()
