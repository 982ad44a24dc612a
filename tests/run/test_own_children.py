"""A program that starts processes of its own runs as it is, and is told what was not observed."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Bench, Observed, Once


@pytest.fixture(scope="module")
def observed(once: "Once") -> "Observed":
    """A run with a child by subprocess, one by torch's spawn and one by multiprocessing's."""
    return once("children", lambda bench: bench.run("own_children.py", forked=True))


def test_the_program_does_what_it_always_did(observed: "Observed") -> None:
    assert observed.ended.exit_code == 5, observed.ended.stderr
    said = dict(line.split() for line in observed.ended.stdout.splitlines())
    assert list(said) == ["main", "subprocess", "spawn", "pool"]
    assert len(set(said.values())) == 1  # all train from the same seed


def test_the_programs_own_steps_are_counted(observed: "Observed") -> None:
    assert observed.document["steps"]["count"] == 3


def test_one_line_says_what_was_not_observed(observed: "Observed") -> None:
    (problem,) = observed.document["problems"]
    assert "not observed" in problem
    assert "3 child processes " in problem
    assert "own_children.py" in problem
    assert "\n" not in problem
    for screen in (observed.shown.stdout, observed.ended.stderr):
        assert screen.count("not observed") == 1


def test_children_say_nothing_of_stepscope(observed: "Observed") -> None:
    assert observed.ended.own_lines == []
    assert "Traceback" not in observed.ended.stderr


@pytest.fixture(scope="module")
def ranks(once: "Once") -> "Observed":
    """Two ranks under torch's own launcher, over the loopback interface."""

    def make(bench: "Bench") -> "Observed":
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        env = {"GLOO_SOCKET_IFNAME": "lo"}
        return bench.run(*launcher, str(bench.programs / "ranks.py"), env=env)

    return once("ranks", make)


@pytest.mark.slow
def test_torchs_launcher_runs_as_it_is(ranks: "Observed") -> None:
    assert ranks.ended.exit_code == 0, ranks.ended.stderr
    assert ranks.ended.stdout.splitlines() == ["sum of ranks 1.0"] * 2


@pytest.mark.slow
def test_ranks_are_said_not_to_be_observed(ranks: "Observed") -> None:
    problems = ranks.document["problems"]
    assert len(problems) <= 2
    (line,) = [problem for problem in problems if "not observed" in problem]
    assert "2 child processes" in line
    assert "ranks.py" in line
    assert ranks.shown.exit_code == 0
