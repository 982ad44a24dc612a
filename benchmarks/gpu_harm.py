"""The small programs of tests/harm/programs/cuda on a GPU, as many as fit into a time limit.

python benchmarks/gpu_harm.py [--minutes 8.5] [--jobs 8]    goes on where it stopped
python benchmarks/gpu_harm.py --table

Cases of tests/gpu/test_harm_cuda.py run in blocks; results are written after each. What has passed
is not run again, unless --again. First come the files in which programs were harmed on an H200.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from _about import SOURCE, about

HERE = Path(__file__).resolve().parent
TESTS = "tests/gpu/test_harm_cuda.py"
TEST = "test_a_program_does_the_same_under_observation"
FIRST = ("processes", "profilers", "endings", "training", "threads", "streams", "settings")
BLOCK = 32  # cases between two writes of the results
PASSED, FAILED = "passed", "failed"


def main() -> None:
    sys.path.insert(0, str(SOURCE))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=8.5, help="begin no block later [8.5]")
    parser.add_argument("--jobs", type=int, default=8, help="programs at a time [8]")
    parser.add_argument("--again", action="store_true", help="run those that passed too")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu-harm.json")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    known = json.loads(options.out.read_text()) if options.out.exists() else {"cases": {}}
    if not options.table:
        until = time.monotonic() + 60 * options.minutes
        document = about("stepscope.gpu-harm/1", "gpu_harm.py", device="cuda")
        document["cases"] = {} if options.again else known["cases"]
        todo = [one for one in _cases() if document["cases"].get(one) != PASSED]
        for block in (todo[n : n + BLOCK] for n in range(0, len(todo), BLOCK)):
            left_s = until - time.monotonic()
            if left_s < 0:
                break
            document["cases"] |= _run(block, options.jobs, left_s)
            document["left"] = sum(one not in document["cases"] for one in todo)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(document, indent=1) + "\n")
            print(table(document), end="", flush=True)
        known = document
    print(table(known), end="")


def _pytest(*arguments: str, timeout_s: float | None = None) -> str:
    """Its output, however it ended."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environ = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        command, cwd=HERE.parent, env=environ, stdout=subprocess.PIPE, text=True, timeout=timeout_s
    )
    return done.stdout


def _cases() -> list[str]:
    """The names of all cases, `processes-fork_before_cuda-window`, in the order they run."""
    listed = _pytest("--collect-only", "-o", "addopts=", TESTS)
    names = re.findall(rf"::{TEST}\[(.+)\]", listed)

    def order(name: str) -> int:
        file = name.partition("-")[0]
        return FIRST.index(file) if file in FIRST else len(FIRST)

    return sorted(names, key=order)


def _run(names: list[str], jobs: int, left_s: float) -> dict[str, str]:
    """How each case ended; none that the time limit cut off."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        which = [f"{TESTS}::{TEST}[{name}]" for name in names]
        options = ["-n", str(jobs), "--dist", "loadgroup", f"--junitxml={report}"]
        try:
            print(_pytest(*options, *which, timeout_s=left_s)[-4000:])
        except subprocess.TimeoutExpired:
            return {}
        found: dict[str, str] = {}
        for case in ElementTree.parse(report).iter("testcase"):
            name = case.get("name", "").partition("[")[2].rpartition("]")[0]
            ended = {child.tag for child in case}
            if "skipped" not in ended:
                found[name] = FAILED if ended & {"failure", "error"} else PASSED
    return found


def table(document: dict[str, Any]) -> str:
    counts = Counter(document["cases"].values())
    failed = [name for name, ended in document["cases"].items() if ended == FAILED]
    head = (
        f"passed {counts[PASSED]:,} · failed {counts[FAILED]:,} · left {document.get('left', 0):,}"
    )
    return "\n".join([head, *failed, ""])


if __name__ == "__main__":
    main()
