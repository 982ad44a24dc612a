"""What fixes are worth: unedited programs under `stepscope run --fix`, side by side.

python benchmarks/fix_ladder.py [slow] [resnet18] [resnet50]    on a machine with a GPU
python benchmarks/fix_ladder.py --table FILE.json               the table of earlier results

Every rung is a run of its own; rounds go through all rungs, so that slow drifts meet them alike.
What is known is written after each run; what the file has of other programs stays.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from _about import SOURCE, about

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
EXAMPLES = HERE.parent / "examples"
LONGEST_S = 120

PROGRAMS: dict[str, list[str]] = {
    "slow": ["slow.py", "--steps", "150"],
    "resnet18": ["resnet18.py", "--steps", "300"],
    "resnet50": ["resnet50.py", "--steps", "160", "--batch", "64"],
}
"""Each reads the loss after its last step: else the device would be behind the host by then, and
the steps' times would leave out what it has yet to do."""
LADDERS: dict[str, list[str]] = {
    "slow": [
        "",
        "nosync",
        "workers=12",
        "workers=12 pin nosync",
        "workers=12 pin nosync tf32",
        "workers=12 pin nosync tf32 amp=bf16",
        "workers=12 pin nosync tf32 amp=bf16 fused_optimizer channels_last",
        "workers=12 pin nosync tf32 amp=bf16 fused_optimizer cuda_graph",
    ],
    "resnet18": [
        "",
        "amp=bf16 channels_last fused_optimizer",
        "amp=bf16 channels_last fused_optimizer cuda_graph",
        "amp=bf16 channels_last fused_optimizer compile=reduce-overhead",
    ],
    "resnet50": [
        "",
        "amp=bf16 channels_last fused_optimizer",
        "amp=bf16 channels_last fused_optimizer cuda_graph",
        "amp=bf16 channels_last fused_optimizer compile=reduce-overhead",
    ],
}


def main() -> None:
    sys.path.insert(0, str(SOURCE))
    options = arguments()
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    document = about("stepscope.ladder/1", "fix_ladder.py", device="cuda")
    out = options.out or RESULTS / "fix-ladder.json"
    others = []
    if out.exists() and set(options.programs) != set(PROGRAMS):
        earlier = json.loads(out.read_text())
        scripts = {PROGRAMS[program][0] for program in options.programs}
        others = [one for one in earlier["results"] if one["program"].split()[0] not in scripts]
        document["command"] = f"{earlier['command']}; {document['command']}"
    for results in climbed(options.programs, options.rounds):
        document["results"] = [*others, *results]
        out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document), end="")


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE.json")
    return parser.parse_args()


def climbed(programs: list[str], rounds: int) -> Iterator[list[dict[str, Any]]]:
    """All rungs of the programs' ladders, `rounds` times over; what is known after each run."""
    seen: dict[tuple[str, str], list[dict[str, Any]]] = {
        (program, rung): [] for program in programs for rung in LADDERS[program]
    }
    for _ in range(rounds):
        for (program, rung), runs in seen.items():
            runs.append(measured(program, rung.split()))
            yield [_ladder(one, seen) for one in programs if seen[one, LADDERS[one][0]]]


def _ladder(program: str, seen: dict[tuple[str, str], list[dict[str, Any]]]) -> dict[str, Any]:
    """What is known of one program."""
    rungs = [
        {"fixes": rung.split(), "runs": runs}
        for (of, rung), runs in seen.items()
        if of == program and runs
    ]
    return {"program": " ".join(PROGRAMS[program]), "rungs": rungs}


def measured(program: str, fixes: list[str]) -> dict[str, Any]:
    """Speed of one run, and what became of its fixes; `failed` where it did not end well."""
    asked = [part for fix in fixes for part in ("--fix", fix)]
    script, *rest = PROGRAMS[program]
    stepscope = [sys.executable, "-m", "stepscope.cli.main"]
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        command = ["run", "--quiet", "--no-window", "--out", out, *asked, str(EXAMPLES / script)]
        try:
            done = _call([*stepscope, *command, *rest])
            shown = _call([*stepscope, "show", out, "--json"])
        except subprocess.TimeoutExpired:
            return {"failed": f"took more than {LONGEST_S} s"}
    if shown.returncode:
        return {"failed": shown.stderr.strip()[-300:]}
    document = json.loads(shown.stdout)
    if done.returncode:
        return {"failed": done.stderr.strip()[-300:], "fixes": document["fixes"]}
    losses = [loss for loss in document["losses"] if loss is not None]
    return {
        "step_ms": document["steps"]["mean_ms"],
        "median_ms": document["steps"]["median_ms"],
        "samples_per_s": document["steps"]["samples_per_s"],
        "measured_steps": document["steps"]["measured_steps"],
        "last_loss": losses[-1] if losses else None,
        "fixes": document["fixes"],
    }


def _call(command: list[str]) -> Any:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=LONGEST_S,
        env=_environment(),
    )  # fmt: skip


def _environment() -> dict[str, str]:
    import os

    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{path}" if path else str(SOURCE)}


def table(document: dict[str, Any]) -> str:
    """As Markdown, a table for each program."""
    lines = []
    for result in document["results"]:
        lines += [
            f"`{result['program']}`",
            "",
            "| fixes | step ms | samples/s | speedup | not applied |",
            "|---|--:|--:|--:|---|",
        ]
        base = _middle(result["rungs"][0]["runs"], "step_ms")
        lines += [_row(rung, base) for rung in result["rungs"]]
        lines.append("")
    return "\n".join(lines)


def _middle(runs: list[dict[str, Any]], what: str) -> float | None:
    """The median of the runs that ended well."""
    found = [run[what] for run in runs if run.get(what)]
    return median(found) if found else None


def _row(rung: dict[str, Any], base: float | None) -> str:
    name = " ".join(rung["fixes"]) or "none"
    step, rate = (_middle(rung["runs"], what) for what in ("step_ms", "samples_per_s"))
    last = rung["runs"][-1]
    unfit = [
        f"{fix['name']}: {fix['reasons'][0]}"
        for fix in last.get("fixes", [])
        if fix["state"] != "applied"
    ]
    if step is None:
        return f"| {name} | – | – | – | {last.get('failed', 'no steps')} |"
    speed = f"{base / step:.2f}×" if base else "–"
    shown = f"{rate:,.0f}" if rate else "–"
    return f"| {name} | {step:.2f} | {shown} | {speed} | {'; '.join(unfit)} |"


if __name__ == "__main__":
    main()
