"""A program that starts processes of its own runs as it is, and is told what was not observed."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Observed, Once


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
