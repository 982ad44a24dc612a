"""Any recording is opened by what is in it; several ranks side by side."""

import gzip
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from plain import TRACES

from stepscope.record.errors import StepscopeError, UsageError
from stepscope.trace import load, workers
from stepscope.trace.load import open_ranks, open_trace

SMALL = TRACES / "cuda_event_sync_multi_stream.json.gz"


def write(path: Path, rank: int | None = None) -> Path:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    about = {} if rank is None else {"distributedInfo": {"rank": rank}}
    path.write_text(json.dumps({**about, "traceEvents": [event]}))
    return path


def test_names_do_not_matter(tmp_path: Path) -> None:
    shutil.copy(SMALL, tmp_path / "packed.json")
    (tmp_path / "plain.gz").write_bytes(gzip.decompress(SMALL.read_bytes()))
    counts = {len(open_trace(tmp_path / name).host) for name in ("packed.json", "plain.gz")}
    assert counts == {45}


def test_an_export_of_nsight_systems_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(gzip.decompress((TRACES / "h100_2gpu_1s.sqlite.gz").read_bytes()))
    assert open_trace(path).tool == "nsys"


def test_another_database_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("create table t (x)")
    with pytest.raises(StepscopeError, match="Nsight Systems"):
        open_trace(path)


def test_a_report_without_nsys_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "run.nsys-rep").write_bytes(b"\0" * 100)
    with pytest.raises(StepscopeError, match="nsys"):
        open_trace(tmp_path / "run.nsys-rep")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK\x03\x04rest", "zip archive: unpack"),
        (b"(\xb5/\xfdrest", "zstd: unpack"),
        (gzip.compress(b"SQLite format 3\0rest", mtime=0), "compressed SQLite"),
        (b"", "is empty"),
    ],
)
def test_what_cannot_be_opened_is_one_clear_line(
    content: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "odd"
    path.write_bytes(content)
    with pytest.raises(StepscopeError, match=words):
        open_trace(path)


def test_a_folder_with_one_recording_is_that_recording(tmp_path: Path) -> None:
    write(tmp_path / "a.pt.trace.json")
    (tmp_path / "notes.txt").write_text("x")
    assert len(open_trace(tmp_path).host) == 1


def test_a_folder_with_none_or_many_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no traces"):
        open_trace(tmp_path)
    write(tmp_path / "a.json")
    write(tmp_path / "b.json")
    with pytest.raises(UsageError, match="2 traces"):
        open_trace(tmp_path)


def test_ranks_come_in_order(tmp_path: Path) -> None:
    for name, rank in (("x", 10), ("y", 2), ("z9", None), ("z10", None)):
        write(tmp_path / f"{name}.json", rank)
    found = open_ranks(tmp_path)
    assert [(t.rank, Path(t.source).stem) for t in found] == [
        (2, "y"),
        (10, "x"),
        (None, "z9"),
        (None, "z10"),
    ]


def test_ranks_in_processes_are_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = [SMALL, write(tmp_path / "one.json", 1), tmp_path / "missing.json"]
    here = open_ranks(files)
    used = []

    def counted(*arguments: Any) -> Any:
        used.append(arguments)
        return workers.run_jobs(*arguments)

    monkeypatch.setattr(load, "_WORTH_SHARING", 0)
    monkeypatch.setattr(load, "usable_cores", lambda: 2)
    monkeypatch.setattr(load, "run_jobs", counted)
    there = open_ranks(files)
    assert used
    assert [t.rank for t in there] == [t.rank for t in here] == [0, 1]
    assert there[0].names == here[0].names
    assert there[0].quality == here[0].quality
    assert (there[0].host.start == here[0].host.start).all()


def test_a_rank_that_fails_leaves_a_note(tmp_path: Path) -> None:
    write(tmp_path / "a.json", 0)
    (tmp_path / "b.json").write_text("{}")
    (found,) = open_ranks(tmp_path)
    assert [note for note in found.quality.notes if "b.json" in note and "left out" in note]


def test_two_files_of_one_rank_are_said(tmp_path: Path) -> None:
    found = open_ranks([write(tmp_path / "a.json", 3), write(tmp_path / "b.json", 3)])
    assert "several traces claim rank 3" in found[0].quality.notes


def test_if_none_can_be_read_it_is_an_error(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(StepscopeError, match="none of 2 traces"):
        open_ranks(tmp_path)
    with pytest.raises(UsageError, match="no trace named"):
        open_ranks([])


def _raises(what: str) -> Any:
    if what == "ours":
        raise StepscopeError("ours")
    if what == "dies":
        import os

        os._exit(9)
    if what == "other":
        raise ZeroDivisionError
    print("not an answer")
    yield what


def test_a_process_that_fails_is_told_from_one_that_dies() -> None:
    found = workers.run_jobs(_raises, [("ours",), ("dies",), ("fine",)], list, 3)
    assert [str(f) for f in found[:2]] == [
        "ours",
        "a reader process was killed (out of memory?)",
    ]
    assert found[2] == ["fine"]
    with pytest.raises(ZeroDivisionError):
        workers.run_jobs(_raises, [("other",)], list, 1)
