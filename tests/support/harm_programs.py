"""Small programs, bare and observed, and whether observing changed anything.

They are the cells of a folder's files, `# %% name key=value flag …`; each follows the text of the
folder's `template.py`.
"""

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import warm

from stepscope.analyze.run.records import RunRecords
from stepscope.record.facts import ProblemFact
from stepscope.record.fix import FixKind, FixOutcome, FixState, fix_outcomes
from stepscope.record.fix_words import outcome_json

FOLDER = Path(__file__).parent.parent / "harm" / "programs"
_SOURCE = FOLDER.parent.parent.parent / "src"
_USUAL = "--window-at,4,--window,2"
_OF_WINDOWS = frozenset(("no_window", "no_stacks", "trace_lost"))
_NOT_OF_TRIALS = frozenset(("profiled_itself",))  # with fixes every step is compared
_QUIET = ("run", "--quiet", "--out", "run")


@dataclass(frozen=True)
class HarmProgram:
    """A cell: `# %% name key=value flag …`."""

    name: str
    text: str
    steps: str = "12"
    """How many are counted; `any` where that is not what it is about."""
    exit: str = "0"
    """The exit code of plain Python; negative for a signal; `any` where it is not known."""
    options: str = _USUAL
    """What it is observed with, separated by commas."""
    fix: str = ""
    """Fixes that apply to it, separated by commas."""
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
    unfixed: bool = False  # what it prints tells of fixes: it runs without

    @property
    def fixes(self) -> list[str]:
        return self.fix.split(",") if self.fix else []

    def expected_problems(self, windows: bool = True, fixed: bool = False) -> dict[str, int]:
        """Their kinds and counts; without `windows`, those of a run that records none; `fixed`:
        of one with fixes."""
        pairs = (word.partition(":") for word in self.problems.split(",") if word)
        counts = {kind: int(count or 0) for kind, _, count in pairs}
        left_out = (frozenset() if windows else _OF_WINDOWS) | (_NOT_OF_TRIALS if fixed else set())
        return {kind: count for kind, count in counts.items() if kind not in left_out}


def read_programs(folder: Path) -> list[HarmProgram]:
    """All cells, in the order of files."""
    template = (folder / "template.py").read_text()
    found = []
    for file in sorted(folder.glob("*.py")):
        for cell in file.read_text().split("# %% ")[1:] if file.name != "template.py" else ():
            head, _, body = cell.partition("\n")
            name, *words = shlex.split(head)
            values = dict(word.partition("=")[::2] for word in words if "=" in word)
            flags = {word: True for word in words if "=" not in word and word != "cold"}
            if "cold" in words:
                values["cold"] = "yes"
            found.append(HarmProgram(f"{file.stem}-{name}", template + body, **values, **flags))
    return found


@dataclass(frozen=True)
class Seen:
    """A program under observation: how it ended and what was recorded."""

    said: warm.Said
    folder: Path
    steps: int
    problems: dict[str, int]
    words: list[str]
    """The problems in words."""
    fixes: list[FixOutcome]

    @property
    def exact(self) -> bool:
        """Whether all fixes that took effect promise the same results, bit for bit."""
        return all(fix.kind in (None, FixKind.EXACT) for fix in self.fixes)


def run_bare(program: HarmProgram, folder: Path) -> warm.Said:
    """Run it under plain Python in a new folder; what it says names neither that nor the time."""
    return _neutral(_run(program, folder, []), folder)


def run_observed(program: HarmProgram, folder: Path, options: Sequence[str]) -> Seen:
    """Run it in a new folder under `stepscope run` with these options."""
    said = _neutral(_run(program, folder, [*_QUIET, *options]), folder)
    records = RunRecords(folder / "run")
    problems = records.facts.all(ProblemFact)
    return Seen(
        said,
        folder,
        len(records.steps),
        {str(problem.kind): problem.count for problem in problems},
        [problem.text for problem in problems],
        fix_outcomes(records.facts.fixes),
    )


def assert_as_meant(program: HarmProgram, bare: warm.Said) -> None:
    """The program itself does what it is meant to."""
    code = bare.exit_code
    assert program.exit in ("any", str(code)), f"plain Python ends with {code}: {bare.stderr}"


def assert_same_ending(program: HarmProgram, bare: warm.Said, said: warm.Said) -> None:
    """Exit code and output are those of the bare program."""
    meant = shown_by_a_shell(bare.exit_code)
    assert said.exit_code == meant, f"exit code {said.exit_code}, not {meant}: {said.stderr}"
    assert said.stdout == bare.stdout, "stdout: " + first_difference(bare.stdout, said.stdout)
    if not program.loud:
        assert said.stderr == bare.stderr, "stderr: " + first_difference(bare.stderr, said.stderr)


def assert_unharmed(program: HarmProgram, bare: warm.Said, seen: Seen) -> None:
    """It ends as the bare program; with fixes that compute otherwise, with the same errors."""
    if seen.exact:
        assert_same_ending(program, bare, seen.said)
        return
    meant = shown_by_a_shell(bare.exit_code)
    assert seen.said.exit_code == meant, seen.said.stderr
    assert _errors(seen.said) == _errors(bare)


def _errors(said: warm.Said) -> list[str]:
    return [line for line in said.stderr.splitlines() if "Error" in line]


def first_difference(bare: str, seen: str) -> str:
    """The first line of two texts that differs, from a little before where it does."""
    texts = bare.splitlines(), seen.splitlines()
    for number, lines in enumerate(itertools.zip_longest(*texts), 1):
        if lines[0] != lines[1]:
            pairs = enumerate(zip(*(line or "" for line in lines), strict=False))
            at = max(0, next((n for n, (a, b) in pairs if a != b), 0) - 80)
            words = ["no such line" if line is None else repr(line[at:][:600]) for line in lines]
            return f"line {number} bare: {words[0]}, observed: {words[1]}"
    return f"the end of the last line, bare: {bare[-9:]!r}, observed: {seen[-9:]!r}"


def assert_recorded(program: HarmProgram, seen: Seen, windows: bool = True) -> None:
    """All steps are counted, and what was not seen is said."""
    meant = program.expected_problems(windows, bool(seen.fixes))
    assert seen.problems == meant, f"{seen.problems}, not {meant}: {seen.words}"
    if program.steps != "any":
        assert seen.steps == int(program.steps), f"{seen.steps} steps, not {program.steps}"


def assert_applied(seen: Seen) -> None:
    """Every fix that was asked for took effect."""
    for fix in seen.fixes:
        assert fix.state == FixState.APPLIED, outcome_json(fix)


def shown_by_a_shell(code: int) -> int:
    """An exit code as a shell shows it, and stepscope returns it."""
    return 128 - code if code < 0 else code


_PASSING = re.compile(r"(?<=\[[IWEF])\d{4} [\d:.]+(?= )|(?<=This process \(pid=)\d+")
"""Of every run its own: when torch's C++ logged a line, and which process Python warned of a fork
(from 3.12 on, once there are threads)."""


def _neutral(said: warm.Said, folder: Path) -> warm.Said:
    errors = _PASSING.sub("", said.stderr.replace(str(folder), ""))
    return warm.Said(said.exit_code, said.stdout, errors)


def _run(program: HarmProgram, folder: Path, observing: list[str]) -> warm.Said:
    """Run it under plain Python, or with `observing`, under `stepscope` with these arguments."""
    folder.mkdir()
    (folder / "program.py").write_text(program.text)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "STEPSCOPE_"))}
    path = os.pathsep.join(filter(None, (str(_SOURCE), kept.get("PYTHONPATH"))))
    environ = kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
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
