"""`stepscope batch` beside the same program timed by hand at every size.

python benchmarks/batch_size.py                          ResNet-50 in bf16, on a machine with a GPU
python benchmarks/batch_size.py --model small --device cpu --batch 8 --hand 8,16,32
python benchmarks/batch_size.py --table FILE.json        the table of earlier results
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _about import SOURCE, about

HERE = Path(__file__).resolve().parent
PROGRAMS, PROGRAM = HERE / "programs", "batches.py"
_KEPT = (
    "own", "knee", "largest", "stopped", "curve", "memory_bytes", "headroom", "within", "processes",
    "seconds", "verdict", "command", "notes",
)  # fmt: skip
_HAND_STEPS = 40


def main() -> None:
    sys.path.insert(0, str(SOURCE))
    options = arguments()
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    document = about("stepscope.batch-size/1", "batch_size.py", device=options.device)
    document["model"] = options.model
    document["found"], document["wall_s"], document["screen"] = found(options)
    sizes = [int(size) for size in options.hand.split(",")] if options.hand else []
    document["by_hand"] = {str(size): by_hand(options, size) for size in sizes}
    name = f"batch-size-{'gpu' if options.device == 'cuda' else 'cpu'}.json"
    out = options.out or HERE / "results" / name
    out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document), end="")


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet50", help="of torchvision, or small [resnet50]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--batch", type=int, default=64, help="the program's own size [64]")
    parser.add_argument("--hand", default="64,128,256,512,1024", help="sizes timed by hand")
    parser.add_argument("--max", type=int, help="the largest size stepscope tries")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for all [600]")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE.json")
    return parser.parse_args()


def found(options: argparse.Namespace) -> tuple[dict[str, Any], float, str]:
    """What stepscope found, the seconds it took, and its screen."""
    from stepscope.batch.document import Batch
    from stepscope.report.story.batch import verdict_sentence
    from stepscope.results.load import decode

    limit = ["--max", str(options.max)] if options.max else []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "batch"
        words = ["-m", "stepscope.cli.main", "batch", *limit, "--out", str(out), PROGRAM]
        begun = time.monotonic()
        screen = _said([*words, *_arguments(options, options.batch)], options.timeout)
        took = time.monotonic() - begun
        told = json.loads((out / "batch.json").read_text())
    told["verdict"] = verdict_sentence(decode(told, Batch))
    return {key: told[key] for key in _KEPT}, took, screen.replace(str(out), "batch-folder")


def by_hand(options: argparse.Namespace, size: int) -> float | None:
    """Samples per second by the program's own clock; None where it does not run."""
    steps = ["--steps", str(_HAND_STEPS), "--time"]
    try:
        return float(_said([PROGRAM, *_arguments(options, size), *steps], options.timeout))
    except subprocess.CalledProcessError:
        return None


def _arguments(options: argparse.Namespace, size: int) -> list[str]:
    return ["--model", options.model, "--device", options.device, "--batch", str(size)]


def _said(words: list[str], timeout_s: float) -> str:
    path = os.environ.get("PYTHONPATH")
    environ = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{path}" if path else str(SOURCE)}
    done = subprocess.run(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, check=True, timeout=timeout_s,
        env=environ, cwd=PROGRAMS,
    )  # fmt: skip
    return done.stdout


def table(document: Mapping[str, Any]) -> str:
    """The curve as Markdown, both ways, and the answer."""
    told, hand = document["found"], document["by_hand"]
    rows = {row["batch"]: row for row in told["curve"]}
    lines = [
        "| batch | stepscope, samples/s | by hand | ratio | memory | |",
        "|--:|--:|--:|--:|--:|---|",
    ]
    marks = {told["own"]: "own"} | {
        told[name]["batch"]: name for name in ("largest", "knee") if told[name]
    }
    for size in sorted({*rows, *map(int, hand)}):
        row, plain = rows.get(size, {}), hand.get(str(size))
        rate, share = row.get("samples_per_s"), row.get("memory_share")
        cells = [
            f"{size:,}",
            f"{rate:,.0f}" if rate else row.get("status", "").replace("_", " "),
            f"{plain:,.0f}" if plain else "",
            f"{rate / plain:.3f}" if rate and plain else "",
            f"{share:.0%}" if share else "",
            marks.get(size, ""),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    summary = f"{told['processes']} processes, {document['wall_s']:.0f} s. {told['verdict']}"
    return "\n".join([*lines, "", summary]) + "\n"


if __name__ == "__main__":
    main()
