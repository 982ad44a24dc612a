"""Ranks side by side: who waits, who is late, since when and why; and what is lost of which."""

import shutil
import struct

import pytest
from ranked import COMMUNICATION, LINES, USUAL, never_left, ranked_run, without_end

from stepscope.analyze.run.document import RankState, StragglerCause
from stepscope.analyze.run.ranks import study_ranks
from stepscope.analyze.run.records import RunRecords
from stepscope.analyze.run.summary import summarize
from stepscope.record.facts import ProgramError, SiteKind
from stepscope.record.row_log import MEETING_COLUMNS, MEETINGS_FILE, RANKS_FOLDER


def study(folder):
    return study_ranks(RunRecords(folder))


def late(rank, *, since=0, every=1, **parts):
    """This rank takes longer for these parts, in every so many steps."""

    def extra(who, step):
        return parts if who == rank and step >= since and step % every == every - 1 else {}

    return extra


STEP = sum(USUAL.values()) + COMMUNICATION


def test_ranks_alike_wait_for_nobody(tmp_path):
    group = study(ranked_run(tmp_path / "run", noise=0.0))
    assert [row.rank for row in group.ranks] == [0, 1, 2, 3]
    for row in group.ranks:
        assert row.state is RankState.ENDED
        assert row.step_ms == pytest.approx(STEP, rel=1e-3)
        assert row.waiting_for_others_ms == pytest.approx(0.0, abs=1e-6)
        assert row.exposed_communication_ms == pytest.approx(COMMUNICATION, rel=1e-3)
        assert row.work_ms == pytest.approx(STEP - COMMUNICATION - USUAL["data_wait"], rel=1e-3)
    assert group.straggler is None


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_run_names_nobody(tmp_path, seed):
    assert study(ranked_run(tmp_path / "run", seed=seed, noise=0.2)).straggler is None


@pytest.mark.parametrize("clocked", [True, False])
@pytest.mark.parametrize(
    ("part", "cause", "line"),
    [
        ("data_wait", StragglerCause.DATA, LINES[SiteKind.DATA_WAIT]),
        ("forward", StragglerCause.FORWARD, LINES[SiteKind.FORWARD]),
        ("backward", StragglerCause.BACKWARD, LINES[SiteKind.BACKWARD]),
        ("optimizer", StragglerCause.OPTIMIZER, None),
        ("other", StragglerCause.HOST, None),
    ],
)
def test_a_late_rank_is_named_with_its_cause(tmp_path, part, cause, line, clocked):
    for rank, ms in ((0, 2.0), (2, 8.0)):
        folder = tmp_path / f"{rank}"
        found = study(ranked_run(folder, extra=late(rank, **{part: ms}), clocked=clocked)).straggler
        assert found is not None
        assert (found.rank, found.cause, found.since_step) == (rank, cause, 1)
        assert found.late_ms == pytest.approx(ms, rel=0.3)
        assert found.extra_ms == pytest.approx(ms, rel=0.3)
        assert (found.place.line if found.place else None) == line


def test_others_wait_for_the_late_rank(tmp_path):
    folder = ranked_run(tmp_path / "run", extra=late(1, backward=8.0), noise=0.0)
    waits = [row.waiting_for_others_ms for row in study(folder).ranks]
    assert waits == pytest.approx([8.0, 0.0, 8.0, 8.0], rel=1e-3, abs=1e-3)


def test_checkpoints_of_one_rank_are_told_apart(tmp_path):
    extra = late(0, every=5, checkpoint=40.0)
    found = study(ranked_run(tmp_path / "run", extra=extra)).straggler
    assert found is not None
    assert (found.rank, found.cause) == (0, StragglerCause.CHECKPOINT)
    assert found.place is not None
    assert found.place.line == LINES[SiteKind.SAVE]


def test_the_step_it_began_at_is_found(tmp_path):
    extra = late(3, since=50, backward=8.0)
    found = study(ranked_run(tmp_path / "run", steps=120, extra=extra)).straggler
    assert found is not None
    assert (found.rank, found.cause) == (3, StragglerCause.BACKWARD)
    assert abs(found.since_step - 51) <= 2


def test_one_hiccup_is_no_straggler(tmp_path):
    extra = late(1, since=40, every=60, backward=500.0)
    assert study(ranked_run(tmp_path / "run", extra=extra)).straggler is None


def test_exchanges_are_counted_and_timed(tmp_path):
    folder = ranked_run(tmp_path / "run", extra=late(1, backward=8.0), noise=0.0)
    (one,) = study(folder).collectives
    assert (one.kind, one.per_step, one.bytes) == ("gradients", 1.0, 16)
    assert one.time_ms == pytest.approx(COMMUNICATION, rel=1e-3)
    assert one.spread_ms == pytest.approx(8.0, rel=1e-3)


def test_a_rank_that_failed_and_those_that_it_took_along(tmp_path):
    folder = ranked_run(tmp_path / "run")
    without_end(folder, 1, ProgramError(type="ValueError", text="planted"))
    without_end(folder, 2)
    never_left(folder, 2)
    rows = study(folder).ranks
    assert [row.state for row in rows] == [
        RankState.ENDED,
        RankState.FAILED,
        RankState.KILLED,
        RankState.ENDED,
    ]
    stood = rows[2].stood_in
    assert stood is not None
    assert (stood.kind, stood.line) == ("gradients", LINES[SiteKind.BACKWARD])


def test_a_rank_without_a_folder_never_started(tmp_path):
    folder = ranked_run(tmp_path / "run")
    shutil.rmtree(folder / RANKS_FOLDER / "0")
    found = summarize(RunRecords(folder))
    assert [row.state for row in found.ranks][:2] == [RankState.MISSING, RankState.ENDED]
    assert found.steps.count == 80


@pytest.mark.parametrize("name", ["rows.npy", "facts.jsonl", MEETINGS_FILE])
def test_a_damaged_rank_does_not_hide_the_others(tmp_path, name):
    folder = ranked_run(tmp_path / "run")
    path = folder / RANKS_FOLDER / "0" / name
    content = b'{"fact": "rank", "rank": "x"}\n' if name == "facts.jsonl" else b"\xff" * 9000
    path.write_bytes(content)
    found = summarize(RunRecords(folder))
    assert [row.state for row in found.ranks] == [RankState.UNREADABLE, *[RankState.ENDED] * 3]
    assert found.steps.count == 80


def test_meetings_of_unknown_kinds_are_left_out(tmp_path):
    folder = ranked_run(tmp_path / "run", ranks=2)
    path = folder / RANKS_FOLDER / "1" / MEETINGS_FILE
    content = bytearray(path.read_bytes())
    at = len(content) - 8 * (len(MEETING_COLUMNS) - MEETING_COLUMNS.index("kind"))
    content[at : at + 8] = struct.pack("<d", 99.0)
    path.write_bytes(content)
    assert [row.state for row in study(folder).ranks] == [RankState.ENDED] * 2


def test_a_restarted_rank_shows_its_last_attempt(tmp_path):
    folder = ranked_run(tmp_path / "run")
    shutil.copytree(folder / RANKS_FOLDER / "1", folder / RANKS_FOLDER / "1.1")
    assert [row.restarts for row in study(folder).ranks] == [0, 1, 0, 0]


def test_a_program_of_one_process_has_no_ranks(tmp_path):
    folder = ranked_run(tmp_path / "run", ranks=2)
    assert study(folder / RANKS_FOLDER / "1").ranks == []


def test_ranks_share_the_cores_of_their_machine(tmp_path):
    config = summarize(RunRecords(ranked_run(tmp_path / "run", cores=8))).config
    assert config.usable_cores == 2.0
    assert config.distributed is not None
    assert config.distributed.local_ranks == 4


@pytest.mark.parametrize("same", [True, False])
def test_ranks_with_the_same_losses_read_the_same_data(tmp_path, same):
    assert study(ranked_run(tmp_path / "run", same_data=same)).same_data is same
