"""How well `stepscope bench` repeats: the same in many processes, and what is claimed of them.

python benchmarks/bench_repeat.py --device cuda            measure, write the results, print tables
python benchmarks/bench_repeat.py --device cuda --pairs 7  as many independent pairs of each point
python benchmarks/bench_repeat.py --table FILE.json        print the tables of earlier results

Points take turns, so that slow changes of the machine meet them alike. What is known is written
after each process.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _about import SOURCE, about
from _repeat_splits import INDEPENDENT, counted
from _repeat_table import table

if TYPE_CHECKING:
    from stepscope.bench.record import ProcessRecord

RESULTS = Path(__file__).resolve().parent / "results"
POINTS: dict[str, dict[str, tuple[Any, ...]]] = {
    "cuda": {
        "resnet18 train": ("resnet18", "train", 128, {"size": 32, "data": "resident"}),
        "resnet50 infer": ("resnet50", "infer", 32, {}),
        "gpt generate": ("gpt", "generate", 8, {"prompt": 64, "new_tokens": 32}),
    },
    "cpu": {
        "mlp train": ("mlp", "train", 64, {"data": "resident", "samples": 512}),
        "simple_cnn infer": ("simple_cnn", "infer", 16, {"size": 32}),
    },
}
"""By device and name: model, mode, batch, settings."""


def main() -> None:
    sys.path.insert(0, str(SOURCE))  # this checkout is measured, installed or not
    options = arguments()
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{SOURCE}{os.pathsep}{path}" if path else str(SOURCE)
    device = "gpu" if options.device == "cuda" else "cpu"
    out = options.out or RESULTS / f"bench-repeat-{device}.json"
    document = about("stepscope.repeat/1", "bench_repeat.py", device=options.device)
    document["seconds"] = options.seconds
    for points in measured(options):
        document["points"] = points
        out.write_text(json.dumps(document) + "\n")
    print(table(document), end="")


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--points", help="names with commas between them [all of the device]")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each process's section [2]")
    parser.add_argument("--processes", type=int, default=10, help="of each point [10]")
    parser.add_argument(
        "--pairs", type=int, default=0,
        help=f"independent pairs of each point: {2 * INDEPENDENT} processes each",
    )  # fmt: skip
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a process [300]")
    parser.add_argument("--out", type=Path, help="[benchmarks/results/bench-repeat-<cpu|gpu>.json]")
    parser.add_argument("--table", type=Path, metavar="FILE.json", help="only print the tables")
    options = parser.parse_args()
    known = POINTS[options.device]
    options.points = options.points.split(",") if options.points else list(known)
    unknown = set(options.points) - set(known)
    if unknown:
        parser.error(f"no point {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    options.processes = max(2, options.processes, 2 * INDEPENDENT * options.pairs)
    return options


def measured(options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """What is known of all points, after each process."""
    from stepscope.bench.grid import Point
    from stepscope.bench.measure_point import measure

    records: dict[str, list[ProcessRecord]] = {name: [] for name in options.points}
    for number in range(1, options.processes + 1):
        for name, seen in records.items():
            model, mode, batch, settings = POINTS[options.device][name]
            settings = {**settings, "seconds": options.seconds}
            point = Point.of(model, mode, batch, options.device, (), **settings)
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                seen.append(measure(point, Path(folder) / "process", options.timeout))
            took = f"{time.monotonic() - begun:.0f} s, {seen[-1].status}"
            print(f"{name} {number}/{options.processes}: {took}", file=sys.stderr, flush=True)
            yield [summed_up(one, found) for one, found in records.items()]
    yield [summed_up(one, found) | judged(found) for one, found in records.items()]


def summed_up(name: str, records: Sequence["ProcessRecord"]) -> dict[str, Any]:
    """Spread and noise floor of one point's processes; without them where fewer than two ended
    well."""
    from msgspec import to_builtins

    from stepscope.stats.intervals import estimate, why_unstable
    from stepscope.stats.verdict import noise_floor

    series = _series(records)
    means = [sum(times) / len(times) for times in series]
    found: dict[str, Any] = {
        "name": name,
        "point": to_builtins(records[0].point) if records else None,
        "mean_ms": means,
        "failed": sorted({str(one.why) for one in records if one.status != "ok"}),
    }
    if len(series) < 2:
        return found
    known = estimate(series)
    return found | {
        "value_ms": known.value,
        "low_ms": known.low,
        "high_ms": known.high,
        "deviation": known.spread,
        "spread": max(means) / min(means) - 1,
        "noise_floor": noise_floor([series]),
        "unstable": why_unstable(series),
    }


def judged(records: Sequence["ProcessRecord"]) -> dict[str, Any]:
    """The verdicts on the processes against each other."""
    series = _series(records)
    return {"verdicts": counted(series)} if len(series) > 1 else {}


def _series(records: Sequence["ProcessRecord"]) -> list[list[float]]:
    """The step times of each process that ended well."""
    from stepscope.bench.record import results_of

    return [one.series_ms for one in results_of(records) if one.series_ms]


if __name__ == "__main__":
    main()
