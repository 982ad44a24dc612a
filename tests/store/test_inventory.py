"""The results kept in a folder: listed, pinned, renamed, removed."""

import json
import os

import pytest

from stepscope.record.errors import UsageError
from stepscope.store.folder import lock_folder
from stepscope.store.inventory import (
    StoredResult,
    is_result,
    old_results,
    parse_age,
    pin,
    remove,
    rename,
    stored_results,
)

RUN = {
    "schema": "stepscope.run/2",
    "run": {"id": "one", "program": "train.py", "argv": ["--epochs", "3"], "exit_code": 0},
}


def made(place, name, document=RUN, marker="run.json", changed=1000.0):
    folder = place / name
    folder.mkdir()
    (folder / marker).write_text(json.dumps(document))
    os.utime(folder / marker, (changed, changed))
    return folder


def test_results_of_all_kinds_are_listed_the_newest_first(tmp_path):
    made(tmp_path, "one", changed=1.0)
    made(tmp_path, "two", {"schema": "stepscope.tune/2", "run": {"program": "a.py"}}, "tune.json")
    made(tmp_path, "three", {"schema": "stepscope.batch/2"}, "batch.json", changed=3e3)
    made(tmp_path, "four", {"schema": "x"}, "bench.json", changed=4e3)
    made(tmp_path, "under way", {}, "journal.jsonl", changed=5e3)
    found = stored_results(tmp_path)
    assert [one.name for one in found] == ["under way", "four", "three", "two", "one"]
    assert [one.kind for one in found] == ["tune", "bench", "batch", "tune", "run"]
    assert (found[-1].program, found[-1].arguments) == ("train.py", ("--epochs", "3"))
    assert found[-1].exit_code == 0
    assert found[-1].size_bytes > 0


def test_what_is_not_ours_or_cannot_be_read_is_no_obstacle(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / ".gitignore").write_text("*\n")
    (tmp_path / "link").symlink_to(tmp_path)
    made(tmp_path, "list", [1, 2])
    made(tmp_path, "wrong types", {"run": {"program": 3, "argv": "x", "exit_code": "y"}})
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    found = {one.name: one for one in stored_results(tmp_path)}
    assert {*found} == {"list", "wrong types", "broken"}
    assert {one.program for one in found.values()} == {None}
    assert found["wrong types"].exit_code is None


def test_a_run_under_way_is_told_and_kept(tmp_path):
    folder = made(tmp_path, "one")
    lock = lock_folder(folder)
    try:
        (found,) = stored_results(tmp_path)
        assert found.under_way
        assert old_results([found], 0) == []
        with pytest.raises(UsageError, match="under way"):
            rename(folder, "other")
    finally:
        os.close(lock)


def stored(name, changed, **fields):
    usual = {"kind": "run", "program": None, "size_bytes": 1, "pinned": False, "under_way": False}
    return StoredResult(**{"name": name, "changed": changed, **usual, **fields})


def test_old_ones_may_go_unless_pinned_or_under_way():
    found = [
        stored("old", 100.0),
        stored("new", 950.0),
        stored("pinned", 100.0, pinned=True),
        stored("busy", 100.0, under_way=True),
    ]
    assert [one.name for one in old_results(found, 100, now=1000.0)] == ["old"]


def test_a_pin_comes_and_goes(tmp_path):
    folder = made(tmp_path, "one")
    pin(folder, True)
    assert stored_results(tmp_path)[0].pinned
    pin(folder, False)
    pin(folder, False)
    assert not stored_results(tmp_path)[0].pinned


def test_only_what_stepscope_wrote_is_removed(tmp_path):
    mine, foreign = made(tmp_path, "mine"), made(tmp_path, "foreign")
    (foreign / "thesis.tex").write_text("years of work")
    remove(tmp_path, "mine")
    assert not mine.exists()
    with pytest.raises(UsageError, match=r"thesis\.tex"):
        remove(tmp_path, "foreign")
    assert (foreign / "thesis.tex").exists()
    (tmp_path / "notes").mkdir()
    with pytest.raises(UsageError, match="not a result"):
        remove(tmp_path, "notes")


def test_a_renamed_run_is_found_by_its_new_name(tmp_path):
    folder = rename(made(tmp_path, "one"), "baseline")
    assert folder == tmp_path / "baseline"
    assert is_result(folder)
    assert json.loads((folder / "run.json").read_text())["run"]["id"] == "baseline"


@pytest.mark.parametrize("name", ["../out", "a/b", "..", ".hidden", "taken", ""])
def test_a_name_that_cannot_be_is_refused(tmp_path, name):
    folder = made(tmp_path, "one")
    made(tmp_path, "taken")
    with pytest.raises(UsageError):
        rename(folder, name)
    assert folder.exists()


@pytest.mark.parametrize(("text", "seconds"), [("12h", 43200), ("30d", 2592000), ("1w", 604800)])
def test_ages(text, seconds):
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "30", "-1d", "1.5d", "30m", "٣d "])
def test_what_is_no_age_is_refused(text):
    with pytest.raises(UsageError, match="30d"):
        parse_age(text)
