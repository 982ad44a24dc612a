"""Small programs, bare and observed: exit code, output, losses, weights, buffers and the state of
the random generators are the same, and steps are counted or said to be partial.

The programs are the cells of `programs/*.py`. Those marked `quick` run in `make test`, all of them
in `make test-all`.
"""

from collections import Counter

import pytest
from harm_programs import (
    FOLDER,
    HarmProgram,
    assert_as_meant,
    assert_recorded,
    assert_same_ending,
    read_programs,
    run_bare,
    run_observed,
)

PROGRAMS = read_programs(FOLDER)


def test_there_are_enough_programs_and_each_has_a_name_of_its_own():
    names = Counter(program.name for program in PROGRAMS)
    assert len(names) == len(PROGRAMS) >= 150
    assert sum(program.quick for program in PROGRAMS) >= 50


@pytest.mark.parametrize(
    "program",
    [pytest.param(p, id=p.name, marks=[] if p.quick else [pytest.mark.slow]) for p in PROGRAMS],
)
def test_a_program_does_the_same_under_observation(tmp_path, program):
    after = run_observed(program, tmp_path / "observed", _options(program))
    if program.expect != "ends":
        before = run_bare(program, tmp_path / "bare")
    if program.expect == "same":
        assert_as_meant(program, before)
        assert_same_ending(program, before, after.said)
    elif program.expect == "same_start":
        losses = after.said.stdout.splitlines()[: int(_option(program, "--steps")) - 1]
        assert losses == before.stdout.splitlines()[: len(losses)]
    if program.expect != "same":
        assert (after.said.exit_code, after.said.stderr) == (0, "")
    assert_recorded(program, after)


def _options(program: HarmProgram) -> list[str]:
    if program.fix:
        return ["--no-window", "--fix", program.fix]
    return [word for word in program.options.split(",") if word]


def _option(program: HarmProgram, name: str) -> str:
    words = program.options.split(",")
    return words[words.index(name) + 1]
