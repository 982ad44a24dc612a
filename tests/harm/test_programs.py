"""Small programs, bare and observed: exit code, output, losses, weights, buffers and the state of
the random generators are the same, and steps are counted or said to be partial.

The programs are the cells of `programs/*.py`. Those marked `quick` run in `make test`, all of them,
also without a window and with each fix, in `make test-all`.
"""

from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import warm
from harm_programs import (
    FOLDER,
    HarmProgram,
    assert_as_meant,
    assert_recorded,
    assert_same_ending,
    assert_unharmed,
    read_programs,
    run_bare,
    run_observed,
)

PROGRAMS = read_programs(FOLDER)
EXACT = ("workers=2", "persistent", "recycle", "checkpointing", "cache")
# (the cache and workers exclude each other)
NUMERIC = ("foreach", "fused_optimizer", "threads=1", "channels_last", "amp=bf16", "sdpa")
WAYS = {
    "no_window": ["--no-window"],
    "all_exact": ["--no-window", *(word for name in EXACT[:-1] for word in ("--fix", name))],
    **{name: ["--no-window", "--fix", name] for name in (*EXACT, *NUMERIC)},
}


def test_there_are_enough_programs_and_each_has_a_name_of_its_own():
    names = Counter(program.name for program in PROGRAMS)
    assert len(names) == len(PROGRAMS) >= 150
    assert sum(program.quick for program in PROGRAMS) >= len(PROGRAMS) / 3


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "way"),
    [
        pytest.param(p, way, id=f"{p.name}-{way}", marks=pytest.mark.xdist_group(p.name))
        for p in PROGRAMS
        if p.expect == "same" and not p.unfixed
        for way in WAYS
    ],
)
def test_a_program_does_the_same_in_other_ways(tmp_path, program, way):
    seen = run_observed(program, tmp_path / "observed", WAYS[way])
    bare = _bare(program)
    try:
        assert_unharmed(program, bare, seen)
    except AssertionError:
        again = run_bare(program, tmp_path / "again")
        assert again.stdout == bare.stdout, "the bare program does not repeat itself"
        raise
    assert_recorded(program, seen, windows=False)


@cache
def _bare(program: HarmProgram) -> warm.Said:
    """Once for all ways that run in this process."""
    with TemporaryDirectory() as folder:
        return run_bare(program, Path(folder) / "bare")


def _options(program: HarmProgram) -> list[str]:
    if program.fix:
        return ["--no-window", "--fix", program.fix]
    return [word for word in program.options.split(",") if word]


def _option(program: HarmProgram, name: str) -> str:
    words = program.options.split(",")
    return words[words.index(name) + 1]
