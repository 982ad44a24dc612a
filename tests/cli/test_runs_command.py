"""`stepscope runs`: listing and tidying what is kept."""

import json
import os

import pytest

from stepscope.cli.main import main

RUN = {
    "schema": "stepscope.run/2",
    "run": {"id": "a", "program": "train.py", "argv": ["--lr", "0.1"], "exit_code": 0},
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with two runs, the second of them new."""
    monkeypatch.chdir(tmp_path)
    for name in ("1001-first", "1002-second"):
        folder = tmp_path / ".stepscope" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(RUN))
    os.utime(tmp_path / ".stepscope" / "1001-first" / "run.json", (1.0, 1.0))
    return tmp_path / ".stepscope"


@pytest.fixture
def run(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(["runs", *arguments])
        said = capsys.readouterr()
        return caught.value.code or 0, said.out, said.err

    return run


def test_they_are_listed_with_what_ran(here, run):
    code, out, err = run()
    assert (code, err) == (0, "")
    assert out.index("1002-second") < out.index("1001-first")
    assert "train.py --lr 0.1" in out
    assert "stepscope show 1002-second" in out


def test_as_json(here, run):
    code, out, _ = run("--json")
    document = json.loads(out)
    assert (code, document["schema"]) == (0, "stepscope.runs/1")
    assert [one["name"] for one in document["results"]] == ["1002-second", "1001-first"]


def test_a_folder_of_ones_own(here, run, monkeypatch, tmp_path):
    monkeypatch.chdir("/")
    assert "1001-first" in run(str(here))[1]


def test_old_ones_are_removed_and_pinned_ones_stay(here, run):
    assert run("pin", "first") == (0, "", "")
    assert run("clean", "--older-than", "30d")[2] == "0 results removed, 0 B\n"
    assert run("pin", "first", "--off") == (0, "", "")
    assert run("clean", "--older-than", "30d", "--dry-run")[1].startswith("1001-first")
    assert (here / "1001-first").exists()
    code, out, err = run("clean", "--older-than", "30d")
    assert (code, out.split()[0]) == (0, "1001-first")
    assert err.startswith("1 result removed")
    assert [one.name for one in here.iterdir()] == ["1002-second"]


def test_what_holds_foreign_files_stays_and_is_named(here, run):
    (here / "1001-first" / "model.pt").write_text("mine")
    code, _, err = run("clean", "--older-than", "30d")
    assert code == 2
    assert "model.pt" in err
    assert (here / "1001-first" / "model.pt").exists()


def test_a_run_gets_a_name(here, run):
    assert run("rename", "second", "baseline") == (0, "", "")
    assert (here / "baseline" / "run.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pin", "100"), "no result 100"),
        (("rename", "third", "x"), "no result third"),
        (("clean", "--older-than", "soon"), "30d"),
        (("list", "nowhere"), "nowhere: no such folder"),
    ],
)
def test_what_cannot_be_is_one_line(here, run, words, said):
    code, out, err = run(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_without_any_it_says_how_to_make_one(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    assert run() == (2, "", "stepscope: no runs here yet. Start one: stepscope run train.py\n")
