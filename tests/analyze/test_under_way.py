"""Whether a run still goes on while its folder is read."""

import os

import pytest

from stepscope.analyze.run.records import RunRecords
from stepscope.analyze.run.summary import summarize
from stepscope.record.facts import ProcessFact
from stepscope.record.run import RUN_SCHEMA, RunInfo, RunRecord
from stepscope.store.folder import lock_folder, write_run
from stepscope.store.json_lines import FactLog


@pytest.fixture
def folder(tmp_path):
    run = RunInfo(id="one", exit_code=None, started_ns=10**9)
    write_run(tmp_path, RunRecord(schema=RUN_SCHEMA, run=run))
    return tmp_path


def test_a_run_that_ends_while_it_is_read_was_under_way(folder):
    lock = lock_folder(folder)
    records = RunRecords(folder)
    assert records.run.run.exit_code is None
    os.close(lock)
    assert summarize(records).run.under_way


def test_a_run_that_nobody_writes_any_more_is_not_under_way(folder):
    os.close(lock_folder(folder))
    assert not summarize(RunRecords(folder)).run.under_way


@pytest.mark.parametrize(
    ("ended", "said"), [({"signal": 15}, "was ended before its first"), ({}, "stepscope.step()")]
)
def test_a_run_without_steps_says_whether_it_was_ended_before(tmp_path, ended, said):
    run = RunInfo(id="one", exit_code=143, started_ns=10**9, ended_ns=2 * 10**9, **ended)
    write_run(tmp_path, RunRecord(schema=RUN_SCHEMA, run=run))
    FactLog(tmp_path / "facts.jsonl").write(ProcessFact(booted_ns=1, torch="2.9", python="3.12"))
    assert said in str(summarize(RunRecords(tmp_path)).problems[0])
