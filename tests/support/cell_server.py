"""Runs programs with fixes, each in a child forked from a process that has imported torch already.

python tests/support/cell_server.py --device cpu --jobs 2 < CELLS.json

CELLS.json is a list of stages, each a list of `{"program": "cnn", "fixes": ["pin", "workers=2"]}`;
`"fixes": null` is the bare program. What came of each is a line of JSON on stdout, in the order in
which they end. A pair is not run if one of the two did nothing alone, in an earlier stage, because
there is no CUDA device; with --skip-idle, for whatever reason. A fix alone is not run again if it
changed no losses by its own account: nothing is compared with it.
"""

import argparse
import ast
import atexit
import gc
import importlib
import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "fixes" / "programs"
SOURCE = HERE.parent.parent / "src"
NO_DEVICE = "no CUDA device"
NEEDS_ANOTHER = ("persistent", "cuda_graph")
"""Fixes that may have nothing to do alone, and something beside another."""
Cell = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for a cell")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="to begin cells in")
    parser.add_argument("--skip-idle", action="store_true")
    parser.add_argument("--command-line", action="store_true", help="by `stepscope run` instead")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    stages = json.load(sys.stdin)
    if not options.command_line:
        preload(sorted({cell["program"] for stage in stages for cell in stage}), options.device)
    folder = Path(tempfile.mkdtemp())  # not one that the exit of a forked child removes
    until = time.monotonic() + options.seconds
    idle: set[str] = set()
    exact: set[str] = set()
    try:
        for stage in stages:
            left_out = {1: exact, 2: idle}
            cells = [c for c in stage if not left_out.get(size(c), set()) & {*(c["fixes"] or ())}]
            for ended in serve(cells, options, folder, until):
                print(json.dumps(ended), flush=True)
                if idle_alone(ended, options.skip_idle):
                    idle.update(ended["fixes"])
                if exact_alone(ended):
                    exact.update(ended["fixes"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def preload(programs: list[str], device: str) -> None:
    """Import what the programs will import. CUDA must not be touched before a fork."""
    import torch
    import torch._dynamo

    torch.set_num_threads(1)
    if device == "cpu":  # compiling asks CUDA for its random state
        zero = torch.zeros(1, requires_grad=True)
        torch.compile(torch.sin, backend="aot_eager")(zero).backward()
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    importlib.import_module("stepscope.launch.bootstrap")
    importlib.import_module("stepscope.probe.observer")
    for program in programs:
        for node in ast.walk(ast.parse((PROGRAMS / f"{program}.py").read_text())):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    importlib.import_module(alias.name)
            elif isinstance(node, ast.ImportFrom) and not str(node.module).startswith("_"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    getattr(module, alias.name)
    if torch.cuda.is_initialized():
        sys.exit("CUDA is in use before the first cell: children cannot use it")
    gc.collect()
    gc.freeze()  # what is imported by now need not be looked through in every child


def size(cell: Cell) -> int:
    """How many fixes it has."""
    return len(cell["fixes"] or ())


def exact_alone(ended: Cell) -> bool:
    """Whether it is of one fix that did nothing, or nothing that would change a loss."""
    kinds = {fix["kind"] for fix in ended["became"]}
    return size(ended) == 1 and ended["exit_code"] == 0 and kinds <= {None, "exact"}


def idle_alone(ended: Cell, for_any_reason: bool) -> str | None:
    """Why a fix by itself did nothing, so that it need not be tried with others; else None."""
    if size(ended) != 1 or ended["exit_code"] != 0 or not ended["became"]:
        return None
    (fix,) = ended["became"]
    if fix["state"] != "not applicable":
        return None
    reason = fix["reasons"][0]
    for_good = reason == NO_DEVICE or (for_any_reason and fix["name"] not in NEEDS_ANOTHER)
    return f"{fix['name']}: {reason}" if for_good else None


def serve(
    cells: list[Cell], options: argparse.Namespace, folder: Path, until: float
) -> Iterator[Cell]:
    """Some cells at a time, until all have ended; none is begun after `until`."""
    waiting = list(enumerate(cells))
    running: dict[int, tuple[Cell, Path, float]] = {}
    try:
        while waiting or running:
            if time.monotonic() > until:
                waiting.clear()
            while waiting and len(running) < options.jobs:
                number, cell = waiting.pop(0)
                place = folder / str(number)
                (place / "run").mkdir(parents=True)
                running[begin(cell, place, options)] = cell, place, time.monotonic()
            for pid, (cell, place, begun) in list(running.items()):
                seconds = time.monotonic() - begun
                late = seconds > options.timeout
                if late:
                    kill(pid)
                ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
                if ended:
                    kill(pid)  # what it may have left behind, as loader workers
                    del running[pid]
                    code = None if late else os.waitstatus_to_exitcode(status)
                    yield cell | outcome(place, code) | {"seconds": round(seconds, 2)}
                    shutil.rmtree(place, ignore_errors=True)
            time.sleep(0.005)
    finally:
        for pid in running:
            kill(pid)


def begin(cell: Cell, place: Path, options: argparse.Namespace) -> int:
    """Start a cell in a process of its own; its id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        child(cell, place, options)
    return pid


def child(cell: Cell, place: Path, options: argparse.Namespace) -> None:
    """One cell, from a fork to the end of its process. Never returns."""
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for name, number in (("stdout", 1), ("stderr", 2)):
            file = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(place)
        program = str(PROGRAMS / f"{cell['program']}.py")
        if options.command_line:
            os.execv(sys.executable, [sys.executable, *command(cell, program, options.device)])
        if cell["fixes"] is not None:
            prepare(cell["fixes"], place / "run", options.device)
        sys.argv = [program, options.device]
        sys.path[0] = str(PROGRAMS)
        code = run(program)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def command(cell: Cell, program: str, device: str) -> list[str]:
    """What follows `python` to run a cell in a process of its own."""
    if cell["fixes"] is None:
        return [program, device]
    asked = [word for fix in cell["fixes"] for word in ("--fix", fix)]
    options = ["--quiet", "--no-window", "--out", "run", *asked]
    return ["-m", "stepscope.cli.main", "run", *options, program, device]


def prepare(fixes: list[str], run: Path, device: str) -> None:
    """What `stepscope run` does for a program before its first line."""
    import torch

    from stepscope.fixes.registry import fix_variables, parse_fixes
    from stepscope.launch.bootstrap import start_probe
    from stepscope.record.probe_options import ProbeOptions

    variables = fix_variables(parse_fixes(fixes))
    os.environ.update(variables)
    if device == "cuda" and (settings := variables.get("PYTORCH_CUDA_ALLOC_CONF")):
        torch.cuda.memory._set_allocator_settings(settings)  # it may have read them by now
    if device == "cpu":  # the real compiler takes many seconds for each graph
        importlib.import_module("stepscope.fixes.launching.compile")._backend = "aot_eager"
    options = ProbeOptions(str(run), time.monotonic_ns(), window=0, fixes=tuple(fixes))
    start_probe(options.to_json())


def run(program: str) -> int:
    """The program to its end, as the interpreter would; its exit code."""
    try:
        runpy.run_path(program, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def outcome(place: Path, code: int | None) -> dict[str, Any]:
    """What a program printed, how it ended (None: it never did) and what became of its fixes."""
    from stepscope.record.facts import ProblemFact
    from stepscope.record.fix import fix_outcomes
    from stepscope.record.fix_words import outcome_json
    from stepscope.store.json_lines import read_facts

    printed = [line.partition(" ") for line in (place / "stdout").read_text().splitlines()]
    facts = place / "run" / "facts.jsonl"
    found = read_facts(facts)
    return {
        "exit_code": code,
        "losses": [float(rest) for first, _, rest in printed if first == "loss"],
        "said": [rest for first, _, rest in printed if first in ("weights", "validation", "rate")],
        "became": [outcome_json(one) for one in fix_outcomes(found.fixes)],
        "problems": [fact.text for fact in found.all(ProblemFact)],
        "stderr": (place / "stderr").read_text(errors="replace")[-4000:],
    }


def kill(pid: int) -> None:
    """End a cell and all that it started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


if __name__ == "__main__":
    sys.path.insert(1, str(SOURCE))
    main()
