"""Counters of the data clock become shares of the fetch time."""

import numpy as np
import pytest

from stepscope.analyze.run.data_pipeline import pipelines, read_pipeline
from stepscope.record.row_log import CLOCK_COLUMNS
from stepscope.store.json_lines import FactLog, read_facts
from stepscope.store.table import Table

ABOUT = {"loader": "Photos", "loader_file": "data.py", "loader_line": 30, "worker": 0}
MS = 1e6


def process(pid, *slots, transforms=("Resize", "Flip"), **about):
    """Facts and table of one process; a slot is (count, ms, meaning)."""
    table = np.array(
        [(count, ms * MS) for count, ms, _ in slots],
        dtype=[(name, "<f8") for name in CLOCK_COLUMNS],
    )
    facts = [
        {"pid": pid, "slot": slot, **ABOUT, "transforms": list(transforms), **about, **meaning}
        for slot, (_, _, meaning) in enumerate(slots)
    ]
    return facts, table


def transform(order, name, place="defined", file="lib.py", line=1):
    about = {"order": order, "name": name, "place": place, "file": file, "line": line}
    return {"what": "transform", **about}


def line(number, part="fetch"):
    return {"what": "line", "file": "/home/me/data.py", "line": number, "part": part}


def worker(pid, place="defined", at=1):
    return process(
        pid,
        (10, 100, {"what": "fetch"}),
        (40, 0, {"what": "samples"}),
        (0, 20, {"what": "rest"}),
        (10, 10, {"what": "collate", "name": "join", "file": "data.py", "line": 50}),
        (40, 60, transform(0, "Resize", place, "data.py", at)),
        (40, 10, transform(1, "Flip")),
        (1, 20, {"what": "traced_fetch"}),
        (0, 1, {"what": "traced_rest"}),
        (1, 1, {"what": "traced_collate"}),
        (8, 12, {"what": "traced_transform"}),
        (4, 3, line(33)),
        (1, 3, line(51, "collate")),
        (0, 25, {"what": "processor"}),
    )


def sources(*processes):
    facts = [fact for told, _ in processes for fact in told]
    tables = {str(told[0]["pid"]): table for told, table in processes}
    return pipelines({"clock": facts}, tables)


def shares(source):
    return {part.name: part.share for part in source.parts}


def test_shares_are_of_the_fetch_time_and_add_up_to_one():
    (source,) = sources(worker(7))
    assert shares(source) == pytest.approx(
        {
            "Resize": 0.6,
            "data.py:33": 0.15,  # three quarters of what is neither transform nor collate
            "Flip": 0.1,
            "data.py:51": 0.075,  # three quarters of collate
            "rest": 0.05,
            "join": 0.025,
        }
    )
    assert [part.name for part in source.parts][:2] == ["Resize", "data.py:33"]
    assert sum(shares(source).values()) == pytest.approx(1)
    assert source.collate_share == pytest.approx(0.1)


def test_times_are_per_batch_and_per_sample():
    (source,) = sources(worker(7))
    assert (source.batches, source.samples) == (10, 40)
    assert source.ms_per_batch == pytest.approx(10)
    assert source.ms_per_sample == pytest.approx(2.5)
    assert source.parts[0].ms_per_sample == pytest.approx(1.5)


def test_workers_add_up_and_the_surest_place_holds():
    (source,) = sources(worker(7, "called", 33), worker(8, "constructed", 41), worker(9))
    assert (source.processes, source.batches, source.samples) == (3, 30, 120)
    assert source.ms_per_batch == pytest.approx(10)
    assert shares(source)["Resize"] == pytest.approx(0.6)
    assert (source.parts[0].file, source.parts[0].line) == ("data.py", 41)


def test_the_latest_fact_of_a_slot_holds():
    facts, table = worker(7)
    later = {**facts[4], "file": "train.py", "line": 12, "place": "called"}
    (source,) = pipelines({"clock": [*facts, later]}, {"7": table})
    assert (source.parts[0].file, source.parts[0].line) == ("train.py", 12)


def test_datasets_are_told_apart_and_the_slowest_comes_first():
    slots = [(2, 900, {"what": "fetch"}), (2, 0, {"what": "samples"}), (0, 900, {"what": "rest"})]
    other = process("8-1", *slots, loader="Text", transforms=())
    text, photos = sources(worker(7), other)
    assert (text.dataset, photos.dataset) == ("Text", "Photos")
    assert shares(text) == {"rest": 1.0}


def test_how_much_of_a_fetch_a_core_worked_is_known_since_it_is_told():
    (source,) = sources(worker(7), worker(8))
    assert source.processor_share == pytest.approx(0.25)
    facts, table = worker(7)
    (older,) = sources((facts[:-1], table[:-1]))
    assert older.processor_share is None


def test_without_followed_lines_all_else_is_rest():
    facts, table = worker(7)
    facts, table = facts[:6], table[:6]
    (source,) = sources((facts, table))
    assert shares(source) == pytest.approx({"Resize": 0.6, "rest": 0.2, "join": 0.1, "Flip": 0.1})


def test_unknown_samples_leave_times_per_sample_unknown():
    (source,) = sources(process(7, (1, 5, {"what": "fetch"}), (0, 5, {"what": "rest"})))
    assert source.ms_per_sample is None
    assert source.parts[0].ms_per_sample is None


def test_nothing_fetched_and_missing_tables_give_no_source():
    facts, _ = worker(7)
    assert pipelines({}, {}) == []
    assert pipelines({"clock": facts}, {}) == []
    assert sources(process(7, (0, 0, {"what": "fetch"}), (0, 0, {"what": "rest"}))) == []


def test_run_folder_is_read_while_the_worker_still_writes(tmp_path):
    assert read_pipeline(tmp_path, read_facts(tmp_path / "facts.jsonl")) == []
    facts = FactLog(tmp_path / "facts.jsonl")
    for slot, what in enumerate(("fetch", "samples", "rest")):
        facts.write("clock", pid=7, slot=slot, what=what, transforms=[], **ABOUT)
    table = Table(tmp_path / "clock-7.npy", CLOCK_COLUMNS, chunk_rows=16)
    for cell, value in enumerate((2, 6 * MS, 4, 0, 0, 6 * MS)):
        table.cells[cell] = value
    (source,) = read_pipeline(tmp_path, read_facts(tmp_path / "facts.jsonl"))
    assert (source.batches, source.ms_per_batch, source.ms_per_sample) == (2, 3.0, 1.5)
