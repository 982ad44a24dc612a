"""Runs `stepscope` as a user would, each case once however many tests and workers ask for it."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import warm
from showing import shown

PROGRAMS = Path(__file__).parent / "programs"
SOURCE = Path(__file__).parent.parent.parent / "src"
STEPSCOPE = [sys.executable, "-m", "stepscope.cli.main"]
TIMEOUT_S = 250


@dataclass(frozen=True)
class Ended:
    """A finished process."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def own_lines(self) -> list[str]:
        """What stepscope said on stderr by itself, apart from the summary."""
        return [line for line in self.stderr.splitlines() if line.startswith("stepscope: ")]


@dataclass(frozen=True)
class Observed:
    """A run: how `stepscope run` ended, what `show` and `show --json` say of its folder."""

    ended: Ended
    shown: Ended
    as_json: Ended
    folder: str

    @property
    def document(self) -> dict[str, Any]:
        assert self.as_json.exit_code == 0, self.as_json.stderr
        document: dict[str, Any] = json.loads(self.as_json.stdout)
        return document


def run_process(
    command: list[str],
    cwd: Path,
    env: dict[str, str] | None = None,
    stdin: str = "",
    when_ready: Callable[[int], None] | None = None,
    before: Callable[[], None] | None = None,
) -> Ended:
    """Run a command to its end; `when_ready` gets its pid once it has printed a line `ready`,
    and `before` runs in the new process first."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=_environment() | (env or {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,
    )
    seen = ""
    try:
        if when_ready is not None:
            assert process.stdout is not None
            while not seen.endswith("ready\n"):
                line = process.stdout.readline()
                assert line, f"ended early: {process.communicate()[1]}"
                seen += line
            when_ready(process.pid)
        stdout, stderr = process.communicate(stdin, timeout=TIMEOUT_S)
    finally:
        process.kill()
    return Ended(process.returncode, seen + stdout, stderr)


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)
_BEFORE = dict(os.environ)  # any test ran


def _environment() -> dict[str, str]:
    environ = {
        name: text
        for name, text in _BEFORE.items()
        if not name.startswith(("PYTEST_", "STEPSCOPE_"))
    }
    return environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


class Bench:
    """What the tests do to stepscope, in a folder of their own."""

    programs = PROGRAMS
    source = SOURCE

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def python(self, *arguments: str, **how: Any) -> Ended:
        """Plain Python."""
        return run_process([sys.executable, *arguments], how.pop("cwd", self.folder), **how)

    def stepscope(self, *arguments: str, **how: Any) -> Ended:
        """Any command of stepscope."""
        return run_process([*STEPSCOPE, *arguments], how.pop("cwd", self.folder), **how)

    def here(self, *arguments: str, **how: Any) -> Ended:
        """The same in this process, which forks the programs it observes."""
        cwd, environ = how.pop("cwd", self.folder), _environment() | how.pop("env", {})
        said = warm.stepscope(arguments, cwd, environ, **how).in_utf8()
        return Ended(said.exit_code, said.stdout, said.stderr)

    def run(
        self, *arguments: str, window: bool = False, forked: bool = False, **how: Any
    ) -> Observed:
        """`stepscope run`, then `show`; a word that names a file of `programs` stands for it.

        `forked`: where it does not matter how the program came to have imported torch.
        """
        out = self.folder / "run"
        arguments = tuple(
            str(PROGRAMS / word) if (PROGRAMS / word).is_file() else word for word in arguments
        )
        options = ["--out", str(out), *([] if window else ["--no-window"])]
        call = self.here if forked else self.stepscope
        ended = call("run", *options, *arguments, **how)
        return self.shown(ended, out)

    def shell(self, script: str) -> Ended:
        """A shell script in name spaces of its own, where it may mount."""
        return run_process(["unshare", "-rm", "sh", "-c", script], self.folder)

    def shown(self, ended: Ended, out: Path) -> Observed:
        """A run that has ended, with what `show` says of it."""
        return Observed(ended, self.show(str(out)), self.show(str(out), "--json"), str(out))

    def show(self, *arguments: str) -> Ended:
        """`stepscope show`."""
        return Ended(*shown(*arguments))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A bench in an empty folder."""
    return Bench(tmp_path)


Once = Callable[[str, Callable[[Bench], Observed]], Observed]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Makes a run the first time it is asked for by name, in whichever worker."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "observed"
    shared.mkdir(exist_ok=True)

    def get(name: str, make: Callable[[Bench], Observed]) -> Observed:
        kept = shared / f"{name}.json"
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                folder = shared / name
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                kept.write_text(json.dumps(asdict(make(Bench(folder)))))
        data = json.loads(kept.read_text())
        ended = {key: Ended(**data[key]) for key in ("ended", "shown", "as_json")}
        return Observed(**ended, folder=data["folder"])

    return get
