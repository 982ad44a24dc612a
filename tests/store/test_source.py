"""The snapshot of source lines."""

import json
import os
from datetime import UTC, datetime

import pytest

from stepscope.record.run import RunInfo, RunRecord
from stepscope.store.source import SOURCES, read_sources, save_sources


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("".join(f"line_{number} = 0\n" for number in range(1, 101)))
    return path


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def facts(run, *found):
    text = "".join(json.dumps(fact) + "\n" for fact in found)
    (run / "facts.jsonl").write_text(text)


def site(file, line):
    place = {"file": str(file), "line": line, "function": "f"}
    return {"fact": "site", "id": 0, "kind": "loader", **place}


def now():
    return datetime.now(UTC).isoformat(timespec="seconds")


def test_lines_around_each_place_are_kept(run, program):
    facts(run, site(program, 50))
    save_sources(run, now())
    lines = read_sources(run)[str(program)]
    assert lines[50] == "line_50 = 0"
    assert 47 in lines
    assert 46 not in lines
    assert 62 in lines
    assert 63 not in lines


def test_lines_of_the_data_pipeline_are_kept(run, program):
    clock = {"fact": "clock", "pid": 1, "slot": 0, "what": "line", "transforms": [], "worker": 0}
    places = {"file": str(program), "line": 5, "loader_file": str(program), "loader_line": 90}
    facts(run, clock | places | {"loader": "Photos"})
    save_sources(run, now())
    lines = read_sources(run)[str(program)]
    assert lines[5] == "line_5 = 0"
    assert lines[90] == "line_90 = 0"


def test_a_file_changed_after_the_start_is_left_out(run, program):
    started = now()
    later = datetime.fromisoformat(started).timestamp() + 60
    os.utime(program, (later, later))
    facts(run, site(program, 50))
    save_sources(run, started)
    assert read_sources(run) == {}


def test_libraries_are_left_out(run, tmp_path):
    library = tmp_path / "site-packages" / "torch" / "x.py"
    library.parent.mkdir(parents=True)
    library.write_text("secret = 1\n")
    facts(run, site(library, 1))
    save_sources(run, now())
    assert not (run / SOURCES).exists()


def test_what_looks_secret_in_a_line_is_masked(run, program):
    program.write_text('a = 1\nlogin("hf_abcdefghijklmnop")\nb = 2\n')
    facts(run, site(program, 1))
    save_sources(run, now())
    assert read_sources(run)[str(program)] == {1: "a = 1", 2: 'login("***")', 3: "b = 2"}


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"x" * (5 << 20)], ids=["binary", "huge"])
def test_what_is_no_source_is_left_out(run, program, content):
    program.write_bytes(content)
    facts(run, site(program, 1))
    save_sources(run, now())
    assert read_sources(run) == {}


def test_what_is_no_file_is_left_out(run, tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    facts(run, site(tmp_path / "pipe.py", 1), site(tmp_path / "gone.py", 1), site(tmp_path, 1))
    save_sources(run, now())
    assert read_sources(run) == {}


def test_lines_past_the_end_are_skipped(run, program):
    facts(run, site(program, 500))
    save_sources(run, now())
    assert read_sources(run) == {}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"files": []}', '{"files": {"a": {"x": "y"}}}', '{"files": {"a": 1}}']
)
def test_a_damaged_snapshot_is_none(run, text):
    (run / SOURCES).write_text(text)
    assert read_sources(run) == {}


def test_the_snapshot_is_taken_when_a_run_ends(run, program):
    from stepscope.launch.observed_run import complete_folder

    facts(run, site(program, 50))
    complete_folder(run, RunRecord(run=RunInfo(started=now(), exit_code=0)))
    program.write_text("other = 1\n" * 100)
    assert read_sources(run)[str(program)][50] == "line_50 = 0"


def test_a_run_that_cannot_keep_it_says_so(run, program):
    from stepscope.launch.observed_run import complete_folder
    from stepscope.store.folder import RUN_FILE

    facts(run, site(program, 50))
    (run / SOURCES).mkdir()
    complete_folder(run, RunRecord(run=RunInfo(started=now(), exit_code=0)))
    (problem,) = json.loads((run / RUN_FILE).read_text())["run"]["problems"]
    assert problem["kind"] == "no_sources"


def test_no_snapshot_is_none(run):
    assert read_sources(run) == {}
