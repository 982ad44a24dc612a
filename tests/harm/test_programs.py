"""Small programs, bare and observed: exit code, output, losses, weights, buffers and the state of
the random generators are the same, and steps are counted or said to be partial.

The programs are the cells of `programs/*.py`. Those marked `quick` run in `make test`, all of them
in `make test-all`.
"""

import os
import shlex
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import warm

from stepscope.analyze.run.records import RunRecords
from stepscope.record.facts import ProblemFact

FOLDER = Path(__file__).parent / "programs"
_SOURCE = FOLDER.parent.parent.parent / "src"
_USUAL = "--window-at,4,--window,2"


@dataclass(frozen=True)
class Program:
    """A cell: `# %% name key=value flag …`."""

    name: str
    text: str
    steps: str = "12"
    """How many are counted; `any` where that is not what it is about."""
    exit: str = "0"
    """The exit code of plain Python; negative for a signal."""
    options: str = _USUAL
    """What it is observed with, separated by commas."""
    fix: str = ""
    args: str = ""
    stdin: str = ""
    problems: str = ""
    """What is said not to have been seen, as `kind` or `kind:count`, separated by commas."""
    expect: str = "same"
    """`same_start`: ended early on purpose, it says what plain Python says at first; `ends`: under
    plain Python it would not."""
    cold: str = ""
    """It is about a fresh interpreter; a variable of the environment may follow."""
    quick: bool = False
    loud: bool = False  # what it says on stderr is not compared
    module: bool = False  # it runs as `-m`


def read_programs() -> list[Program]:
    """All cells, in the order of files."""
    template = (FOLDER / "template.py").read_text()
    found = []
    for file in sorted(FOLDER.glob("*.py")):
        for cell in file.read_text().split("# %% ")[1:] if file.name != "template.py" else ():
            head, _, body = cell.partition("\n")
            name, *words = shlex.split(head)
            values = dict(word.partition("=")[::2] for word in words if "=" in word)
            flags = {word: True for word in words if "=" not in word and word != "cold"}
            if "cold" in words:
                values["cold"] = "yes"
            found.append(Program(f"{file.stem}-{name}", template + body, **values, **flags))
    return found


PROGRAMS = read_programs()


def test_there_are_enough_programs_and_each_has_a_name_of_its_own():
    names = Counter(program.name for program in PROGRAMS)
    assert len(names) == len(PROGRAMS) >= 150
    assert sum(program.quick for program in PROGRAMS) >= 50


@pytest.mark.parametrize(
    "program",
    [pytest.param(p, id=p.name, marks=[] if p.quick else [pytest.mark.slow]) for p in PROGRAMS],
)
def test_a_program_does_the_same_under_observation(tmp_path, program):
    bare, observed = (tmp_path / name for name in ("bare", "observed"))
    for folder in (bare, observed):
        folder.mkdir()
        (folder / "program.py").write_text(program.text)
    after = _run(program, observed, _observing(program))
    if program.expect != "ends":
        before = _run(program, bare, [])
    if program.expect == "same":
        _is_as_expected(program, before)
        assert after.stdout == before.stdout
        assert after.exit_code == _shown(before.exit_code)
        assert program.loud or _neutral(after.stderr, observed) == _neutral(before.stderr, bare)
    elif program.expect == "same_start":
        losses = after.stdout.splitlines()[: int(_option(program, "--steps")) - 1]
        assert losses == before.stdout.splitlines()[: len(losses)]
    if program.expect != "same":
        assert (after.exit_code, after.stderr) == (0, "")
    records = RunRecords(observed / "run")
    problems = records.facts.all(ProblemFact)
    counts = {str(problem.kind): problem.count for problem in problems}
    assert counts == _problems(program), [problem.text for problem in problems]
    if program.steps != "any":
        assert len(records.steps) == int(program.steps)


def _observing(program: Program) -> list[str]:
    options = [word for word in program.options.split(",") if word]
    fixes = ["--no-window", "--fix", program.fix] if program.fix else []
    return ["run", "--quiet", "--out", "run", *(fixes or options)]


def _option(program: Program, name: str) -> str:
    words = program.options.split(",")
    return words[words.index(name) + 1]


def _problems(program: Program) -> dict[str, int]:
    pairs = (word.partition(":") for word in program.problems.split(",") if word)
    return {kind: int(count or 0) for kind, _, count in pairs}


def _is_as_expected(program: Program, bare: warm.Said) -> None:
    """Whether the program itself does what it is meant to."""
    if program.exit != "any":
        assert bare.exit_code == int(program.exit), bare.stderr


def _shown(code: int) -> int:
    """An exit code as a shell shows it, and stepscope returns it."""
    return 128 - code if code < 0 else code


def _neutral(stderr: str, folder: Path) -> str:
    return stderr.replace(str(folder), "")


def _run(program: Program, folder: Path, observing: list[str]) -> warm.Said:
    """Run it under plain Python, or with `observing`, under `stepscope` with these arguments."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "STEPSCOPE_"))}
    environ = kept | {"PYTHONPATH": str(_SOURCE), "OMP_NUM_THREADS": "1"}
    given = [word for word in program.args.split(",") if word]
    target = ["-m", "program"] if program.module else [str(folder / "program.py")]
    stdin = program.stdin.replace("\\n", "\n").encode()
    if program.cold:
        name, _, value = program.cold.partition("=")
        environ |= {name: value} if value else {}
        words = ["-m", "stepscope.cli.main", *observing] if observing else []
        done = subprocess.run(
            [sys.executable, *words, *target, *given],
            cwd=folder,
            env=environ,
            input=stdin,
            capture_output=True,
            timeout=200,
        )
        texts = (text.decode("latin-1") for text in (done.stdout, done.stderr))
        return warm.Said(done.returncode, *texts)
    if observing:
        return warm.stepscope([*observing, *target, *given], folder, environ, stdin)
    return warm.execute([sys.executable, *target, *given], folder, environ, stdin)
