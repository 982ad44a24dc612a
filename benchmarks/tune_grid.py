"""`stepscope tune` against an exhaustive grid of the same fixes, and a fix that does nothing.

python benchmarks/tune_grid.py grid [resnet18] [slow]    every combination, then a tune
python benchmarks/tune_grid.py null [--device cpu]       20 contests of a fix that changes nothing
python benchmarks/tune_grid.py --table FILE.json

The tune comes first; the grid measures every combination in as many processes as a claim takes,
with trials as long as those of the tune. Then the grid's best and what the tune kept are measured
in turn: the best of many has had luck, and machines become slower and faster. Shares are of the
time of trials: until the ladder stands, and with proof, confirmation and patch, which a grid does
not give. What the file has of other cases stays; a grid that was ended before its end is gone on
with.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from shutil import copyfile
from statistics import fmean
from typing import TYPE_CHECKING, Any

from _about import SOURCE, about, kept

if TYPE_CHECKING:
    from stepscope.measure.runner import TrialRunner

Points = dict[tuple[str, ...], list[dict[str, Any]]]

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"
BUNDLED = SOURCE / "stepscope" / "workloads"
ROUNDS = 3
PAIRS = 5
NULLS = 20

GRIDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "resnet18": (
        "resnet18.py --steps 4000",
        ("amp=bf16", "channels_last", "fused_optimizer", "cuda_graph", "tf32"),
    ),
    "slow": (
        "slow.py --steps 2000",
        ("workers=12", "pin", "nosync", "amp=bf16", "tf32"),
    ),
    "cpu-storage": (
        "bundled/slow.py --steps 4000 --batch 8 --size 32 --threads 1 --storage-ms 4",
        ("workers=4", "persistent", "fused_optimizer", "channels_last", "amp=bf16"),
    ),
    "cpu-decode": (
        "bundled/slow.py --steps 4000 --batch 8 --size 96 --threads 1",
        ("workers=1", "foreach", "fused_optimizer", "channels_last", "amp=bf16"),
    ),
}
"""Program (of the examples, or bundled with the package), and fixes."""


def main() -> None:
    sys.path.insert(0, str(SOURCE))
    options = arguments()
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    document = about("stepscope.tune-grid/1", "tune_grid.py", device=options.device)
    out = options.out or HERE / "results" / f"tune-grid-{options.device}.json"
    kept(out, document, "grids", "null")
    if options.what == "null":
        document["null"] = nulls(options.device)
        out.write_text(json.dumps(document, indent=1) + "\n")
    else:
        chosen = [name for name in GRIDS if name.startswith("cpu-") == (options.device == "cpu")]
        for name in options.programs or chosen:
            grids = document.setdefault("grids", {})
            for found in against_grid(name, options.device, grids.get(name)):
                grids[name] = found
                out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document), end="")


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("grid", "null"), default="grid")
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE.json")
    return parser.parse_args()


@contextmanager
def trials_of(program: str, device: str) -> Iterator["TrialRunner"]:
    """A runner of an example's trials, in a folder of their own."""
    from stepscope.measure.runner import TrialRunner
    from stepscope.measure.trial.host import host_named

    with tempfile.TemporaryDirectory() as place:
        cwd = Path(place) / "work"
        cwd.mkdir()
        target = placed(program, cwd)
        with TrialRunner(target, Path(place) / "tune", cwd, host_named(device)) as runner:
            yield runner


def placed(program: str, cwd: Path) -> Any:
    """A copy of a program in a folder."""
    from stepscope.launch.program import Program

    script, *arguments = program.split()
    folder, _, name = script.rpartition("/")
    copyfile((BUNDLED if folder else EXAMPLES) / name, cwd / name)
    return Program(str(cwd / name), tuple(arguments), module=False)


def combined(fixes: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Every set of them that may be had together."""
    from stepscope.fixes.registry import parse_fixes
    from stepscope.record.errors import UsageError

    found = []
    for count in range(len(fixes) + 1):
        for chosen in combinations(fixes, count):
            try:
                parse_fixes(chosen)
            except UsageError:
                continue
            found.append(chosen)
    return found


def against_grid(
    name: str, device: str, earlier: dict[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """The tune, and the grid as far as it is measured."""
    from stepscope.measure.trial.record import TrialRequest

    program, fixes = GRIDS[name]
    sets = combined(fixes)
    if earlier is None or "steps" not in earlier or "beside" in earlier:
        tune, steps = _tune(program, fixes, device)
        earlier = {"tune": tune, "steps": steps, "grid": {"points": []}}
        yield {"fixes": list(fixes), **earlier, "grid": _grid(sets, {})}
    points = _points(earlier)
    with trials_of(program, device) as runner:

        def measured(chosen: tuple[str, ...]) -> dict[str, Any]:
            return _told(runner(TrialRequest(fixes=chosen, steps=earlier["steps"][_ahead(chosen)])))

        while lacking := _lacking(sets, points):
            chosen = min(lacking, key=lambda one: len(points.get(one, ())))
            points.setdefault(chosen, []).append(measured(chosen))
            yield {"fixes": list(fixes), **earlier, "grid": _grid(sets, points)}
        grid = _grid(sets, points)
        beside = _beside(tuple(grid["best"]), _kept_by(earlier["tune"]), measured)
        yield {"fixes": list(fixes), **earlier, "grid": grid, "beside": beside}


def _kept_by(tune: dict[str, Any]) -> tuple[str, ...]:
    return tuple(tune["final"]["fixes"]) if tune["final"] is not None else ()


def _beside(
    best: tuple[str, ...], kept: tuple[str, ...], measured: Callable[[tuple[str, ...]], Any]
) -> dict[str, list[dict[str, Any]]]:
    """Trials of both in turn; none where they are the same set."""
    found: dict[str, list[dict[str, Any]]] = {"best": [], "tune": []}
    if {*best} != {*kept}:
        for number in range(PAIRS):
            pair = [("best", best), ("tune", kept)]
            for side, fixes in pair if number % 2 else reversed(pair):
                found[side].append(measured(fixes))
    return found


def _points(found: dict[str, Any]) -> Points:
    return {tuple(one["fixes"]): one["trials"] for one in found["grid"]["points"]}


def _lacking(sets: list[tuple[str, ...]], points: Points) -> list[tuple[str, ...]]:
    """Those with too few processes; what does not run will not the next time either."""
    return [
        one
        for one in sets
        if len(points.get(one, ())) < ROUNDS and all(trial["ms"] for trial in points.get(one, ()))
    ]


def _told(trial: Any) -> dict[str, Any]:
    ms = trial.mean_ms if trial.ok and trial.step_ms else None
    return {"ms": ms, "seconds": trial.seconds, "status": trial.status}


def _asked(request: Any) -> dict[str, Any]:
    """What was special about a trial."""
    told = {
        "window": request.window,
        "perturb": request.perturb,
        "seed": request.seed,
        "held": request.draws_per_batch,
        "patched": request.patched is not None,
    }
    return {"fixes": list(request.fixes)} | {name: value for name, value in told.items() if value}


def _ahead(fixes: tuple[str, ...]) -> str:
    """How long a trial is: longer where batches are made ahead."""
    loads = any(fix.startswith(("workers", "prefetch", "persistent")) for fix in fixes)
    return "ahead" if loads else "plain"


def _grid(sets: list[tuple[str, ...]], points: Points) -> dict[str, Any]:
    speeds = {
        chosen: fmean(one["ms"] for one in made)
        for chosen, made in points.items()
        if all(one["ms"] for one in made)
    }
    best = min(speeds, key=lambda chosen: speeds[chosen], default=())
    return {
        "combinations": len(sets),
        "processes": sum(map(len, points.values())),
        "seconds": sum(one["seconds"] for made in points.values() for one in made),
        "best": list(best),
        "best_ms": speeds.get(best),
        "points": [
            {
                "fixes": list(chosen), "ms": speeds.get(chosen), "status": made[-1]["status"],
                "trials": made,
            }
            for chosen, made in points.items()
        ],
    }  # fmt: skip


def _tune(
    program: str, fixes: tuple[str, ...], device: str
) -> tuple[dict[str, Any], dict[str, int]]:
    """What it found, and how long its trials were, with batches made ahead and without."""
    import msgspec

    from stepscope.tune.request import TuneRequest
    from stepscope.tune.tuner import TrialEvent, open_tune

    with tempfile.TemporaryDirectory() as place:
        cwd = Path(place)
        target = placed(program, cwd)
        request = TuneRequest(target, budget_s=3600.0, only=fixes, on=device)
        with open_tune(request, cwd / "tune", False, False, cwd) as tuning:
            events: list[TrialEvent] = []
            found = msgspec.to_builtins(tuning.run(events.append))
    made = [event.trial for event in events if event.trial is not None]
    steps = dict.fromkeys(("plain", "ahead"), made[1].request.steps)
    for trial in made:
        if _ahead(trial.request.fixes) == "ahead":
            steps["ahead"] = max(steps["ahead"], trial.request.steps)
    kept = ("trials", "seconds", "search", "final")
    more = {
        "ladder": [rung["label"] for rung in found["ladder"]],
        "made": [{**_asked(trial.request), **_told(trial)} for trial in made],
    }
    return {name: found[name] for name in kept} | more, steps


def nulls(device: str) -> dict[str, Any]:
    """A fix that sets what is set already, against the program as it is, many times."""
    from stepscope.measure.contest import hold_contest
    from stepscope.measure.trial.pool import Budget, TrialPool
    from stepscope.measure.trial.record import TrialRequest

    asked = [sys.executable, "-c", "import torch; print(torch.get_num_threads())"]
    nothing = (f"threads={subprocess.check_output(asked, text=True).strip()}",)
    program = GRIDS["cpu-decode" if device == "cpu" else "resnet18"][0]
    with trials_of(program, device) as runner:
        results = []
        for _ in range(NULLS):
            lab = TrialPool(Budget(runner, 1e9), TrialRequest(steps=40))
            for _ in range(2):
                lab.fresh(())
            found = hold_contest(lab, (), nothing)
            ratio = None if found.comparison is None else found.comparison.ratio
            why = found.why and found.why.reason
            results.append({"accepted": found.won, "ratio": ratio, "why": why})
    return {"fix": nothing[0], "contests": results}


def table(document: dict[str, Any]) -> str:
    """As Markdown."""
    lines = [
        "| program | best of the grid | tune | of the best | trials | of the grid's time "
        "| with proof and all |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, one in document.get("grids", {}).items():
        grid, tune = one["grid"], one.get("tune")
        if not grid["best_ms"]:
            lines.append(f"| {name} | not measured yet | | | | | |")
            continue
        best = f"{grid['best_ms']:.2f} ms ({' '.join(grid['best']) or 'none'})"
        if tune is None:
            lines.append(f"| {name} | {best} | | | {grid['processes']} | | |")
            continue
        ms = _tuned_ms(tune, grid)
        if ms is None:
            lines.append(f"| {name} | {best} | nothing kept | | | | |")
            continue
        lines.append(
            f"| {name} | {best} | {ms:.2f} ms ({' '.join(tune['ladder']) or 'nothing kept'}) | "
            f"{_share(one, ms):.1%} | {tune['trials']} of {grid['processes']} | "
            f"{tune['search']['seconds'] / grid['seconds']:.0%} | "
            f"{tune['seconds'] / grid['seconds']:.0%} |"
        )
    if "null" in document:
        contests = document["null"]["contests"]
        won = sum(one["accepted"] for one in contests)
        fix = document["null"]["fix"]
        lines += ["", f"`{fix}`, which changes nothing: accepted in {won} of {len(contests)}."]
    return "\n".join(lines) + "\n"


def _share(one: dict[str, Any], tuned_ms: float) -> float:
    """Of the best throughput: 1 where both are the same set; by the grid until it is done."""
    sides = one.get("beside")
    if sides is None:
        return float(one["grid"]["best_ms"] / tuned_ms)
    if not sides["best"]:
        return 1.0
    best, tuned = (fmean(trial["ms"] for trial in sides[side]) for side in ("best", "tune"))
    return float(best / tuned)


def _tuned_ms(tune: dict[str, Any], grid: dict[str, Any]) -> float | None:
    """What the program takes after the tune: as it is, in the grid, where nothing was kept."""
    if tune["final"] is not None:
        return float(tune["final"]["measured"]["ladder"]["step_ms"])
    return next((point["ms"] for point in grid["points"] if not point["fixes"]), None)


if __name__ == "__main__":
    main()
