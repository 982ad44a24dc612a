"""The roofline's model beside hardware counters: FLOPs and bytes of the heaviest operators.

python benchmarks/roofline_counters.py [resnet50] [decoder]     on a machine with ncu
python benchmarks/roofline_counters.py --table FILE.json        the table of earlier results

Each model's step is recorded once by torch.profiler (which gives the shapes) and once by Nsight
Compute (which gives the counters); the two are joined kernel by kernel.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _about import SOURCE, about

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PROGRAM = HERE / "programs" / "one_step.py"
HEAVIEST = 10
FLOPS_GOAL = 0.05


def main() -> None:
    sys.path.insert(0, str(SOURCE))
    options = arguments()
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    document = about("stepscope.roofline/1", "roofline_counters.py", device="cuda")
    document["results"] = [compared(model, options.kernels) for model in options.models]
    out = options.out or RESULTS / "roofline-counters.json"
    out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document), end="")


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=["resnet50", "decoder"])
    parser.add_argument("--kernels", metavar="REGEX", help="count only kernels named so")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE.json")
    return parser.parse_args()


def compared(model: str, kernels: str | None) -> dict[str, Any]:
    """One model's step, from a recording and from counters."""
    from stepscope.bench.kernel_recording import counters_command
    from stepscope.bench.kernel_study import compare_with_ceilings
    from stepscope.trace.kineto.read import read_kineto
    from stepscope.trace.nsight.counters import read_ncu

    with tempfile.TemporaryDirectory() as folder:
        trace, counters = Path(folder) / "trace.json", Path(folder) / "counters.csv"
        run([sys.executable, str(PROGRAM), model, "--record", str(trace)])
        run([*counters_command(counters, kernels), sys.executable, str(PROGRAM), model])
        timeline = read_kineto(trace)
        found = compare_with_ceilings(timeline, read_ncu(counters))
    joined = found.joined
    rows = sorted(found.counted.shapes, key=lambda row: -row.time_ns)[:HEAVIEST]
    join_counts = {k: v for k, v in asdict(joined).items() if k != "counters"}
    return {
        "model": model,
        "kernels": len(timeline.device),
        "counted": len(joined.counters),
        "join": join_counts,
        "operators": [asdict(row) for row in rows],
        "matrix": [matrix_error(row) for row in found.counted.shapes if matrix(row.category)],
    }


def matrix(category: str) -> bool:
    return category in ("matmul", "convolution")


def matrix_error(row: Any) -> dict[str, Any]:
    """How far the model's FLOPs are from those counted, for one operator on one shape."""
    measured = row.measured
    return {
        "name": row.name,
        "shape": row.shape,
        "dtype": row.dtype,
        "time_ns": row.time_ns,
        "flops_error": measured.flops_error if measured else None,
    }


def run(command: list[str]) -> None:
    """Raises RuntimeError with the end of what a failing command said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:]
        raise RuntimeError(f"{command[0]} failed ({done.returncode}): {said}")


def table(document: dict[str, Any]) -> str:
    """As Markdown: the heaviest operators, then how many matrix operators meet the goal."""
    lines = []
    for result in document["results"]:
        lines += [
            f"**{result['model']}**: {result['counted']} of {result['kernels']} kernels counted",
            "",
            "| operator | dtype | ms | GFLOP: model | counted | error | MB: model | counted | × |",
            "|---|---|--:|--:|--:|--:|--:|--:|--:|",
        ]
        lines += [_row(row) for row in result["operators"]]
        errors = [abs(m["flops_error"]) for m in result["matrix"] if m["flops_error"] is not None]
        good = sum(error <= FLOPS_GOAL for error in errors)
        worst = f", worst {max(errors):.1%}" if errors else ""
        lines += [
            "",
            f"Matrix products and convolutions, each on each shape: FLOPs within 5% in {good} of"
            f" {len(errors)} counted{worst}.",
            "",
        ]
    return "\n".join(lines)


def _row(row: dict[str, Any]) -> str:
    measured = row["measured"] or {}
    flops, nbytes = measured.get("flops"), measured.get("bytes")
    model_flops = measured.get("model_flops", row["flops"])
    model_bytes = measured.get("model_bytes", row["bytes"])
    error = measured.get("flops_error")
    ratio = nbytes / model_bytes if nbytes and model_bytes else None
    cells = [
        row["name"],
        row["dtype"],
        f"{row['time_ns'] / 1e6:.2f}",
        _number(model_flops, 1e9),
        _number(flops, 1e9),
        "–" if error is None else f"{error:+.1%}",
        _number(model_bytes, 1e6),
        _number(nbytes, 1e6),
        "–" if ratio is None else f"{ratio:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None, unit: float) -> str:
    return "–" if value is None else f"{value / unit:,.1f}"


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as problem:
        sys.exit(str(problem))
