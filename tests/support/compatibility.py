"""Which fixes go with which programs and with each other: found out by running them."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from cell_judge import Cell, Table
from cell_server import HERE, PROGRAMS, idle_alone

from stepscope.fixes import registry
from stepscope.record.errors import UsageError

VALUES = {"workers": "2", "threads": "2", "batch": "12", "accumulate": "2"}
"""Where the fix's own first suggestion is too much for a program with few samples."""


def shapes() -> list[str]:
    """The programs' names."""
    return sorted(path.stem for path in PROGRAMS.glob("*.py") if path.stem[0] != "_")


def asked(name: str) -> str:
    """How a fix is asked for here."""
    if name in VALUES:
        return f"{name}={VALUES[name]}"
    suggested = registry.fix_named(name).suggested
    return f"{name}={suggested[0]}" if suggested else name


def variants(device: str) -> list[tuple[str, ...]]:
    """Other values of the fixes that are asked for by words."""
    values = {"amp": ["fp16"], "tf32": ["off"]}
    if device == "cuda":
        values["compile"] = ["reduce-overhead"]
    return [(f"{name}={value}",) for name, found in values.items() for value in found]


def singles() -> list[tuple[str, ...]]:
    """Every fix alone."""
    return [(asked(name),) for name in registry.FIX_NAMES]


def pairs(device: str) -> list[tuple[str, ...]]:
    """Every two fixes; on a GPU, of those that do something else there than on the CPU."""
    names = on_a_gpu() if device == "cuda" else registry.FIX_NAMES
    return list(combinations(map(asked, names), 2))


def on_a_gpu() -> list[str]:
    """The fixes that need a GPU, or compute and launch there otherwise than on the CPU."""
    fixes = registry.all_fixes()
    return [f.name for f in fixes if f.needs == "cuda" or f.group in ("arithmetic", "launch")]


def judged_by(fixes: tuple[str, ...]) -> tuple[str, ...]:
    """The part of them that is not exact: with that alone they must give the same losses."""
    kinds = {text: registry.fix_named(text.split("=")[0]).kind for text in fixes}
    return tuple(text for text, kind in kinds.items() if kind != "exact")


def together() -> list[tuple[str, ...]]:
    """As many fixes at once as go together, of the exact ones and of all, from either end."""
    names = list(registry.FIX_NAMES)
    exact = [name for name in names if registry.fix_named(name).kind == "exact"]
    orders = (exact, exact[::-1], names, names[::-1])
    return list(dict.fromkeys(map(_agreeing, orders)))


def _agreeing(names: Iterable[str]) -> tuple[str, ...]:
    chosen: list[str] = []
    for name in names:
        if declared_bad([*chosen, asked(name)]) is None:
            chosen.append(asked(name))
    return registry.in_order(chosen)


def declared_bad(fixes: Sequence[str]) -> str | None:
    """Why these must not be combined; None if they may be."""
    try:
        registry.parse_fixes(fixes)
    except UsageError as problem:
        return str(problem)
    return None


@dataclass(frozen=True)
class How:
    """How cells are run."""

    device: str = "cpu"
    jobs: int = 2
    timeout_s: float = 60.0
    """For one cell."""
    seconds: float = math.inf
    """For all of them: those not begun by then are not run."""
    skip_idle: bool = False
    """Take pairs with a fix that had nothing to do alone for not applicable, without a run."""
    one_stage: bool = False
    """Run pairs without waiting for what their fixes do alone, which is known to be something."""
    command_line: bool = False
    """By `stepscope run` in a process of its own, not in a forked one."""


def run_cells(program: str, sets: Iterable[tuple[str, ...]], how: How) -> list[Cell]:
    """A program with each of these sets of fixes; pairs need their members among the sets."""
    chosen = list(sets)
    ended = list(_ended(_stages(program, chosen, how), how))
    bare = [one for one in ended if one["fixes"] is None]
    for one in bare:
        if one["exit_code"] != 0:
            raise RuntimeError(f"{program} fails by itself: {one['stderr']}")
    table = Table(program, bare)
    with_fixes = [one for one in ended if one["fixes"] is not None]
    for one in with_fixes:
        table.remember(one)
    judged = {cell.fixes: cell for cell in map(table.judge, with_fixes)}
    reasons = ((one["fixes"][0], idle_alone(one, how.skip_idle)) for one in with_fixes)
    idle = {text: reason for text, reason in reasons if reason is not None}
    for fixes in chosen:
        found = _without_running(program, fixes, idle)
        if found is not None and fixes not in judged:
            judged[fixes] = found
    late = "there was no time left for it"
    return [judged.get(fixes) or Cell(program, fixes, "not run", late) for fixes in chosen]


def _stages(program: str, sets: list[tuple[str, ...]], how: How) -> list[list[dict[str, Any]]]:
    """The bare program and fixes alone, then all others; where runs may not repeat, fixes alone
    again, of which the server leaves out those that nothing is compared with."""
    allowed = [fixes for fixes in sets if declared_bad(fixes) is None]
    alone = [fixes for fixes in allowed if len(fixes) == 1]
    first = [None, None, *alone]
    again = [fixes for fixes in alone if judged_by(fixes)] if how.device == "cuda" else []
    then = [*again, *(fixes for fixes in allowed if len(fixes) > 1)]
    stages = [[*first, *sorted(then, key=_brief)]] if how.one_stage else [first, then]
    return [[{"program": program, "fixes": fixes} for fixes in stage] for stage in stages]


def _brief(fixes: Sequence[str]) -> bool:
    """Whether it takes less time than others."""
    return not any(text.startswith("compile") for text in fixes)


def _without_running(program: str, fixes: tuple[str, ...], idle: dict[str, str]) -> Cell | None:
    """What is known of a cell beforehand; `idle` are fixes that did nothing alone, and why."""
    why = declared_bad(fixes)
    if why is not None:
        return Cell(program, fixes, "declared bad", why)
    reasons = [idle[text] for text in fixes if text in idle]
    if len(fixes) == 2 and reasons:
        return Cell(program, fixes, "not applicable", "; ".join(reasons))
    return None


def _ended(stages: list[list[dict[str, Any]]], how: How) -> Iterator[dict[str, Any]]:
    """What came of each cell, as they end."""
    command = [sys.executable, str(HERE / "cell_server.py"), "--device", how.device]
    command += ["--jobs", str(how.jobs), "--timeout", str(how.timeout_s)]
    command += ["--seconds", str(how.seconds)]
    command += ["--skip-idle"] if how.skip_idle else []
    command += ["--command-line"] if how.command_line else []
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    env = os.environ | single | {"HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    env |= {
        "PYTHONPATH": str(HERE.parent.parent / "src"),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking CUDA itself would forbid forking
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        json.dump(stages, server.stdin)
        server.stdin.close()
        try:
            for line in server.stdout:
                yield json.loads(line)
        finally:
            server.terminate()
    if server.returncode > 0:
        raise RuntimeError(f"the cells' server ended with {server.returncode}")
