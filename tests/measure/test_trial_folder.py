"""The folder of a trial that has ended."""

import gzip
import json
from pathlib import Path

from stepscope.measure.trial_folder import last_output_line, tidy_folder

SCRATCH, ORIGINAL = Path("/t/scratch/a/wörk"), Path("/a/wörk")


def test_paths_of_the_scratch_copy_become_the_users_own(tmp_path):
    file = str(SCRATCH / "train.py")
    (tmp_path / "facts.jsonl").write_text(json.dumps({"file": file, "other": "/t/scratch/a/x"}))
    with gzip.open(tmp_path / "stacks.pt.trace.json.gz", "wt") as trace:
        trace.write(f"{file}(12): main")
    tidy_folder(tmp_path, SCRATCH, ORIGINAL)
    kept = json.loads((tmp_path / "facts.jsonl").read_text())
    assert kept == {"file": "/a/wörk/train.py", "other": "/t/scratch/a/x"}
    with gzip.open(tmp_path / "stacks.pt.trace.json.gz", "rt") as trace:
        assert trace.read() == "/a/wörk/train.py(12): main"


def test_an_empty_folder_is_tidy(tmp_path):
    tidy_folder(tmp_path, SCRATCH, ORIGINAL)
    assert [*tmp_path.iterdir()] == []
    assert last_output_line(tmp_path) == ""


def test_the_last_line_is_the_last_that_says_something(tmp_path):
    (tmp_path / "output.txt").write_bytes(b"first\nValueError: \xff no\n\n  \n")
    assert last_output_line(tmp_path) == "ValueError: � no"
