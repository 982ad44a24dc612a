"""Making, finding and reading run folders."""

import os
import re
from pathlib import Path

import pytest

from stepscope.record.errors import BrokenRun, UsageError
from stepscope.record.run import RUN_SCHEMA, RunInfo, RunRecord
from stepscope.store import folder as folders

RUN = RunRecord(run=RunInfo(id="x", exit_code=0), schema=RUN_SCHEMA)


def made(folder, **more):
    folder.mkdir(parents=True, exist_ok=True)
    folders.write_run(folder, RunRecord(**vars(RUN), **more))
    return folder


def test_a_new_folder_lies_under_dot_stepscope_which_ignores_itself(tmp_path):
    folder = folders.create_folder(None, False, tmp_path)
    assert folder.parent == tmp_path / ".stepscope"
    assert list(folder.iterdir()) == []
    assert (tmp_path / ".stepscope/.gitignore").read_text() == "*\n"


def test_two_folders_in_the_same_minute_differ(tmp_path):
    assert len({folders.create_folder(None, False, tmp_path) for _ in range(3)}) == 3


def test_ids_are_short_and_plain():
    assert re.fullmatch(r"\d{4}-\d{4}-[0-9a-f]{3}", folders.new_id())


def test_a_gitignore_of_the_users_is_left_alone(tmp_path):
    (tmp_path / ".stepscope").mkdir()
    (tmp_path / ".stepscope/.gitignore").write_text("!keep\n")
    folders.create_folder(None, False, tmp_path)
    assert (tmp_path / ".stepscope/.gitignore").read_text() == "!keep\n"


def test_a_named_folder_is_made_with_its_parents(tmp_path):
    folder = folders.create_folder(tmp_path / "a/b/c", False, tmp_path)
    assert folder == tmp_path / "a/b/c"
    assert folder.is_dir()
    assert not (tmp_path / ".stepscope").exists()


def test_an_empty_folder_can_be_used(tmp_path):
    (tmp_path / "out").mkdir()
    assert folders.create_folder(tmp_path / "out", False, tmp_path).is_dir()


def test_a_run_is_not_replaced_without_force(tmp_path):
    out = made(tmp_path / "out")
    with pytest.raises(UsageError, match="--force"):
        folders.create_folder(out, False, tmp_path)
    assert (out / "run.json").exists()


def test_force_replaces_a_run_whole(tmp_path):
    out = made(tmp_path / "out")
    (out / "rows.npy").write_bytes(b"old")
    folders.create_folder(out, True, tmp_path)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_other_things_is_never_touched(tmp_path, force):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.tex").write_text("years of work")
    with pytest.raises(UsageError, match="is not a run folder"):
        folders.create_folder(tmp_path / "thesis", force, tmp_path)
    assert (tmp_path / "thesis/chapter.tex").read_text() == "years of work"


@pytest.mark.parametrize("force", [False, True])
def test_a_file_in_the_way_is_named(tmp_path, force):
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        folders.create_folder(tmp_path / "out", force, tmp_path)


def test_a_file_among_the_parents_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out"):
        folders.create_folder(tmp_path / "file/out", False, tmp_path)


def refuse(*_, **__):
    raise PermissionError(13, "Permission denied")


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(UsageError, match=r"cannot write to .*--out"):
        folders.create_folder(tmp_path / "out", False, tmp_path)


def test_a_read_only_working_folder_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UsageError, match="--out"):
        folders.create_folder(None, False, tmp_path)


def test_a_file_named_dot_stepscope_is_one_clear_error(tmp_path):
    (tmp_path / ".stepscope").write_text("")
    with pytest.raises(UsageError):
        folders.create_folder(None, False, tmp_path)


def test_a_run_under_way_is_not_replaced(tmp_path):
    out = made(tmp_path / "out")
    lock = folders.lock_folder(out)
    try:
        assert folders.in_use(out)
        with pytest.raises(UsageError, match="in use"):
            folders.create_folder(out, True, tmp_path)
        with pytest.raises(UsageError, match="in use"):
            folders.lock_folder(out)
    finally:
        os.close(lock)
    assert not folders.in_use(out)
    folders.create_folder(out, True, tmp_path)


def test_a_folder_without_a_lock_is_not_in_use(tmp_path):
    assert not folders.in_use(tmp_path)
    assert not folders.in_use(tmp_path / "nowhere")
    assert not (tmp_path / "lock").exists()


def test_finds_a_run_by_path_by_id_and_by_part_of_an_id(tmp_path):
    run = made(tmp_path / ".stepscope/1115-0538-abc")
    other = made(tmp_path / ".stepscope/1115-0540-def")
    elsewhere = made(tmp_path / "out")
    assert folders.find_run(str(elsewhere), tmp_path) == elsewhere
    assert folders.find_run("1115-0538-abc", tmp_path) == run
    assert folders.find_run("def", tmp_path) == other


def test_an_ambiguous_part_of_an_id_is_refused(tmp_path):
    made(tmp_path / ".stepscope/1115-0538-abc")
    made(tmp_path / ".stepscope/1115-0540-def")
    with pytest.raises(UsageError, match="1115"):
        folders.find_run("1115", tmp_path)


def test_the_last_run_is_the_one_written_last(tmp_path):
    older, newer = made(tmp_path / ".stepscope/z"), made(tmp_path / ".stepscope/a")
    os.utime(older / "run.json", ns=(1, 1))
    os.utime(newer / "run.json", ns=(2, 2))
    assert folders.find_run(None, tmp_path) == newer


def test_no_run_yet_says_what_to_type(tmp_path):
    with pytest.raises(UsageError, match="stepscope run"):
        folders.find_run(None, tmp_path)


def test_a_name_without_a_run_says_so(tmp_path):
    with pytest.raises(UsageError, match="no run nothing"):
        folders.find_run("nothing", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no run\.json"):
        folders.find_run(str(tmp_path / "empty"), tmp_path)


@pytest.mark.parametrize("name", ["[", "**", "a/../..", "", "\x00"])
def test_odd_names_are_one_clear_error(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made(tmp_path / ".stepscope/1115-0538-abc")
    made(tmp_path / ".stepscope/1115-0538-abd")
    with pytest.raises(UsageError):
        folders.find_run(name, tmp_path)


def test_what_was_written_is_read_back(tmp_path):
    made(tmp_path, environment={"OMP_NUM_THREADS": "4"})
    assert folders.read_run(tmp_path).environment == {"OMP_NUM_THREADS": "4"}
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_writing_that_fails_leaves_the_old_facts(tmp_path):
    made(tmp_path)
    with pytest.raises(TypeError):
        folders.write_run(tmp_path, RunRecord(run=RUN.run, machine=object()))
    assert folders.read_run(tmp_path) == RUN


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "{}", '{"run": {}}'),
        '{"schema": "stepscope.run/1"}',
        '{"schema": "stepscope.run/1", "run": 3}',
    ],
)
def test_a_broken_run_is_named(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(BrokenRun, match=r"run\.json"):
        folders.read_run(tmp_path)


def test_facts_in_no_encoding_are_a_broken_run(tmp_path):
    (tmp_path / "run.json").write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(BrokenRun):
        folders.read_run(tmp_path)
