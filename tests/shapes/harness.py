"""Runs each program of tests/programs under plain Python and under `stepscope run`, once.

What is expected of a program stands in comments at its top, each on a line of its own:

    # steps: 12                  the exact number of steps
    # losses: mean               `loss` lines print the mean over several backwards in a step
    # optimizer steps: 20 4      per optimizer, most first (default: one, every step); or `any`
    # inferred                   no optimizer steps (`inferred: any` where either reading is right)
    # compile: graph_breaks      uses torch.compile, with at least one of each thing named
    # needs: lightning g++       skipped where a package or command is missing
    # arguments: …               the command line, in shell syntax
    # stdin: …                   what it reads, in Python's escapes
    # cold                       in fresh interpreters, by the command line
    # slow                       left to `make test-all`

Both runs of most programs are forks of one process that has imported torch.
"""

import fcntl
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import warm
from showing import shown

from stepscope.launch.fork_server import FORK_SERVER_AVAILABLE

TESTS = Path(__file__).parent.parent
PROGRAMS = TESTS / "programs"
SOURCE = TESTS.parent / "src"
TIMEOUT_S = 250
ENVIRONMENT = {
    name: text
    for name, text in os.environ.items()
    if not name.startswith(("PYTEST_", "STEPSCOPE_"))
}
"""As it was before any test ran: plain and observed runs may be made by different workers."""
STEPSCOPE = [sys.executable, "-m", "stepscope.cli.main"]


@dataclass(frozen=True)
class Shape:
    """A program and what its head says of it."""

    name: str
    path: Path
    expects: dict[str, str]

    @property
    def steps(self) -> int:
        return int(self.expects["steps"])

    @property
    def optimizer_steps(self) -> list[int] | None:
        """Steps of each optimizer, most first; None where several counts are right."""
        default = "" if "inferred" in self.expects else str(self.steps)
        counts = self.expects.get("optimizer steps", default)
        return None if counts == "any" else [int(count) for count in counts.split()]

    @property
    def inferred(self) -> bool | None:
        """Whether steps are counted by other means than an optimizer; None: either is right."""
        return None if self.expects.get("inferred") == "any" else "inferred" in self.expects

    @property
    def cold(self) -> bool:
        """Whether it needs an interpreter of its own."""
        return "cold" in self.expects or not FORK_SERVER_AVAILABLE

    @property
    def command(self) -> list[str]:
        """What follows `python`, and equally `stepscope run`."""
        target = ["-m", self.name] if self.path.stem == "__main__" else [self.relative_path]
        return [*target, *shlex.split(self.expects.get("arguments", ""))]

    @property
    def cwd(self) -> Path:
        """Not the program's own folder, so that `sys.path[0]` and the cwd differ."""
        return PROGRAMS if self.path.stem == "__main__" else TESTS

    @property
    def relative_path(self) -> str:
        return str(self.path.relative_to(TESTS))

    @property
    def stdin(self) -> str:
        return self.expects.get("stdin", "").encode().decode("unicode_escape")


@dataclass(frozen=True)
class Ended:
    """A finished process. Text is latin-1, so that every byte keeps its place."""

    exit_code: int
    stdout: str
    stderr: str

    def said(self, word: str) -> list[str]:
        """What follows `word` on the lines of stdout that begin with it."""
        lines = [line.partition(" ") for line in self.stdout.splitlines()]
        return [rest for first, _, rest in lines if first == word]


@dataclass(frozen=True)
class Outcome:
    """Both runs of a program, and `stepscope show --json` of the second."""

    shape: Shape
    plain: Ended
    observed: Ended
    shown: Ended

    @property
    def document(self) -> dict[str, Any]:
        return parse_shown(self.shown)


def read_shape(path: Path) -> Shape:
    """Parse the comments between a program's docstring and its first other line."""
    expects = {}
    for line in path.read_text().splitlines()[1:]:
        if line and not line.startswith("# "):
            break
        key, _, value = line.removeprefix("# ").partition(":")
        expects[key.strip()] = value.strip()
    name = path.parent.name if path.stem == "__main__" else path.stem
    return Shape(name, path, expects)


def all_shapes() -> list[Shape]:
    """Every program, by name; files that begin with an underscore are shared parts."""
    scripts = [path for path in PROGRAMS.glob("*.py") if not path.name.startswith("_")]
    return sorted(map(read_shape, [*scripts, *PROGRAMS.glob("*/__main__.py")]), key=str)


def environment() -> dict[str, str]:
    """One thread, and no network."""
    env = dict(ENVIRONMENT)
    return env | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(SOURCE), env.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
    }


def execute(command: list[str], shape: Shape) -> Ended:
    """Run a command to its end in an interpreter of its own."""
    ended = subprocess.run(
        command,
        cwd=shape.cwd,
        env=environment(),
        input=shape.stdin.encode(),
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    return Ended(ended.returncode, ended.stdout.decode("latin-1"), ended.stderr.decode("latin-1"))


def run_plain(shape: Shape) -> Ended:
    command = [sys.executable, *shape.command]
    if shape.cold:
        return execute(command, shape)
    said = warm.execute(command, shape.cwd, environment(), shape.stdin.encode(), TIMEOUT_S)
    return Ended(said.exit_code, said.stdout, said.stderr)


def run_observed(shape: Shape, out: Path, *options: str) -> Ended:
    arguments = ["run", "--quiet", "--out", str(out), *options, *shape.command]
    if shape.cold:
        return execute([*STEPSCOPE, *arguments], shape)
    said = warm.stepscope(arguments, shape.cwd, environment(), shape.stdin.encode())
    return Ended(said.exit_code, said.stdout, said.stderr)


def show(run: Path) -> Ended:
    return Ended(*shown(str(run), "--json"))


def parse_shown(shown: Ended) -> dict[str, Any]:
    """The JSON document that `show --json` printed."""
    assert shown.exit_code == 0, shown.stderr[-300:]
    document: dict[str, Any] = json.loads(shown.stdout)
    return document


def outcome_of(shape: Shape, folder: Path) -> Outcome:
    """Both runs of a program, each made once in `folder` however many processes ask for them."""
    parts: dict[str, Callable[[Path], list[Ended]]] = {
        "plain": lambda run: [run_plain(shape)],
        "observed": lambda run: [run_observed(shape, run, "--no-window"), show(run)],
    }
    for wait in (False, True):  # two processes that ask at once make one part each
        for part, make in parts.items():
            _make_once(folder / f"{shape.name}.{part}", make, wait)
    made = [json.loads((folder / f"{shape.name}.{part}.json").read_text()) for part in parts]
    return Outcome(shape, *(Ended(**ended) for ended in [*made[0], *made[1]]))


def _make_once(path: Path, make: Callable[[Path], list[Ended]], wait: bool) -> None:
    """Keep what `make` returns beside `path`; without `wait`, not if another process is at it."""
    kept = Path(f"{path}.json")
    with open(f"{path}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return
        if not kept.exists():
            kept.write_text(json.dumps([asdict(ended) for ended in make(path)]))


def programs(
    *names: str, where: Callable[[Shape], bool] = lambda shape: True
) -> pytest.MarkDecorator:
    """Parametrise a test's `outcome` over the programs named (none: all) that satisfy `where`."""
    params = [
        pytest.param(shape, id=shape.name, marks=[pytest.mark.slow] * ("slow" in shape.expects))
        for shape in all_shapes()
        if where(shape) and (not names or shape.name in names)
    ]
    return pytest.mark.parametrize("outcome", params, indirect=True)
