"""The commit a run was made from, with git itself stubbed."""

import subprocess
from types import SimpleNamespace

import pytest

from stepscope.store import source

HEAD = "0123456789abcdef0123456789abcdef01234567\n"


@pytest.fixture
def answers(monkeypatch):
    """Answers of git by its first argument; an exception is raised."""
    answers = {"rev-parse": HEAD, "status": ""}
    calls = []

    def run(command, cwd, **options):
        calls.append((command, cwd, options))
        answer = answers[command[1]]
        if isinstance(answer, BaseException):
            raise answer
        return SimpleNamespace(returncode=0 if answer is not None else 128, stdout=answer or "")

    monkeypatch.setattr("subprocess.run", run)
    answers["calls"] = calls
    return answers


def test_a_clean_tree_is_its_commit(answers, tmp_path):
    assert source.git_commit(tmp_path) == "0123456789ab"
    assert all(cwd == tmp_path for _, cwd, _ in answers["calls"])


def test_changed_files_are_marked(answers, tmp_path):
    answers["status"] = " M train.py\n"
    assert source.git_commit(tmp_path) == "0123456789ab+"


def test_outside_a_repository_there_is_none(answers, tmp_path):
    answers["rev-parse"] = None
    assert source.git_commit(tmp_path) is None


def test_a_repository_without_commits_has_none(answers, tmp_path):
    answers["rev-parse"] = ""
    assert source.git_commit(tmp_path) is None


@pytest.mark.parametrize(
    "problem", [FileNotFoundError("git"), subprocess.TimeoutExpired("git", 2), PermissionError()]
)
def test_without_git_or_with_one_that_hangs_there_is_none(answers, tmp_path, problem):
    answers["rev-parse"] = problem
    assert source.git_commit(tmp_path) is None


def test_a_status_that_hangs_leaves_the_commit(answers, tmp_path):
    answers["status"] = subprocess.TimeoutExpired("git", 2)
    assert source.git_commit(tmp_path) == "0123456789ab"


def test_git_is_never_waited_for_long(answers, tmp_path):
    source.git_commit(tmp_path)
    assert all(options["timeout"] <= 5 for _, _, options in answers["calls"])
