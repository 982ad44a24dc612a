"""Findings of several ranks: one that is late, all that read the same data."""

from ranked import ranked_run

from stepscope.analyze.run.records import RunRecords
from stepscope.analyze.run.summary import summarize
from stepscope.diagnose.findings import with_findings
from stepscope.record.finding import ChangeKind


def findings(folder):
    records = RunRecords(folder)
    return {one.id: one for one in with_findings(summarize(records), records).findings}


def test_a_late_rank_is_a_finding_with_its_gain(tmp_path):
    def extra(rank, step):
        return {"backward": 8.0} if rank == 1 else {}

    run = ranked_run(tmp_path / "run", extra=extra, noise=0.0)
    found = findings(run)["ranks.straggler"]
    assert found.title == "Rank 1 is late: backward takes 8.00 ms longer"
    assert found.predicted is not None
    assert abs(found.predicted.step_ms - 22.0) < 0.5
    assert [(one.file, one.line) for one in found.where] == [("/home/me/train.py", 34)]


def test_ranks_that_keep_pace_are_none(tmp_path):
    assert (
        not {"ranks.straggler", "ranks.same_data"} & findings(ranked_run(tmp_path / "run")).keys()
    )


def test_ranks_that_read_the_same_data_are_a_finding(tmp_path):
    found = findings(ranked_run(tmp_path / "run", same_data=True))["ranks.same_data"]
    assert found.kind is ChangeKind.SEMANTIC
    assert found.share == 0.75
