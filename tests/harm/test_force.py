"""`--force` replaces what stepscope wrote, and nothing else."""

import json

import pytest

from stepscope.record.errors import UsageError
from stepscope.store.folder import RUN_FILE, create_folder, remove_result
from stepscope.tune.request import open_tune_folder

RUN = {"schema": "stepscope.run/2", "id": "x"}
JOURNAL = {"schema": "stepscope.tune-journal/2"}
RUN_FILES = (
    *("lock", "facts.jsonl", "rows.npy", "sites.npy", "samples.npy", "sources.json", "window.json"),
    *("window.pt.trace.json.gz", "stacks.pt.trace.json.gz", "window.pt.trace.json.gz.part"),
    *("clock-22063.npy", "clock-22063-1.npy", "python.txt", "memory-cuda.json", "memory.memray"),
    *("memory-marks.txt", "report.html", ".run.json.17.part"),
)


def filled(folder, marker, document, *names):
    folder.mkdir(exist_ok=True)
    (folder / marker).write_text(json.dumps(document, indent=1))
    for name in names:
        (folder / name).write_text("x")
    return folder


def test_a_run_is_replaced_with_all_its_files(tmp_path):
    out = filled(tmp_path / "out", RUN_FILE, RUN, *RUN_FILES)
    assert create_folder(out, True, tmp_path) == out
    assert [*out.iterdir()] == []


def test_a_tune_is_replaced_with_its_trials(tmp_path):
    out = filled(tmp_path / "out", "journal.jsonl", JOURNAL, "tune.json", "stepscope.patch")
    (out / "trials" / "0001").mkdir(parents=True)
    assert open_tune_folder(out, False, True, tmp_path) == out
    assert [*out.iterdir()] == []


@pytest.mark.parametrize(
    "document",
    [{}, {"schema": "wandb.run/1"}, {"name": "my run"}, [1, 2], {"notes": "schema: stepscope.run"}],
)
def test_a_run_json_of_other_origin_saves_its_folder(tmp_path, document):
    out = filled(tmp_path / "out", RUN_FILE, document, "checkpoint.pt")
    with pytest.raises(UsageError, match="was not written by stepscope"):
        create_folder(out, True, tmp_path)
    assert (out / "checkpoint.pt").read_text() == "x"


@pytest.mark.parametrize("name", ["checkpoint.pt", "notes.txt", "rows.csv", "data", ".env", "run"])
def test_a_file_of_the_users_own_saves_the_folder_it_lies_in(tmp_path, name):
    out = filled(tmp_path / "out", RUN_FILE, RUN, *RUN_FILES, name)
    with pytest.raises(UsageError, match=f"also holds {name}, which stepscope did not write"):
        create_folder(out, True, tmp_path)
    assert len([*out.iterdir()]) == len(RUN_FILES) + 2


def test_a_journal_of_other_origin_saves_its_folder(tmp_path):
    out = filled(tmp_path / "out", "journal.jsonl", {"entry": 1}, "diary.md")
    with pytest.raises(UsageError, match="was not written by stepscope"):
        open_tune_folder(out, False, True, tmp_path)
    assert (out / "diary.md").exists()


def test_what_a_link_leads_to_stays(tmp_path):
    data = filled(tmp_path / "data", "train.bin", {})
    out = filled(tmp_path / "out", RUN_FILE, RUN)
    (out / "trials").symlink_to(data)
    remove_result(out, RUN_FILE)
    assert (data / "train.bin").exists()
