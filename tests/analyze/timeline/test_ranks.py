"""Ranks side by side: who is late, told by durations, and what is said of ranks not there."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from msgspec import to_builtins
from recordings import recorded

from stepscope.analyze.timeline.names import communication_kernels
from stepscope.analyze.timeline.ranks import compare_ranks, rank_facts
from stepscope.record.timeline import Timeline


def all_reduces(timeline: Timeline):
    names = np.array(["AllReduce" in name for name in timeline.names])
    return np.flatnonzero(communication_kernels(timeline) & names[timeline.device.name])


def late(timeline: Timeline, rank: int, by_ns: int, which: slice) -> Timeline:
    """The same rank's work as another rank's, that comes later to some all-reduces."""
    start, duration = timeline.device.start.copy(), timeline.device.duration.copy()
    events = all_reduces(timeline)[which]
    start[events] += by_ns
    duration[events] -= by_ns
    device = replace(timeline.device, start=start, duration=duration)
    return replace(timeline, rank=rank, device=device, origin_ns=123, source=f"rank {rank}")


@pytest.fixture
def first():
    return recorded("a100_nccl_rank0")


def test_the_last_to_come_is_the_one_that_stays_for_the_shortest_time(first):
    second = late(first, 1, 1_000_000, slice(0, 10))
    second = late(second, 1, -1_000_000, slice(10, 12))
    found = compare_ranks([rank_facts(first), rank_facts(second)])
    assert (found.present, found.world_size, found.missing) == ([0, 1], 2, 0)
    assert (found.matched, found.unmatched) == (15, 0)
    assert found.skew_max_ns == 1_000_000
    assert found.skew_mean_ns == pytest.approx(12 * 1_000_000 / 15)
    slow, fast = found.lateness
    assert (slow.rank, slow.last, slow.caused_ns, slow.waited_ns) == (1, 10, 10_000_000, 2_000_000)
    assert (fast.rank, fast.last, fast.caused_ns, fast.waited_ns) == (0, 2, 2_000_000, 10_000_000)
    assert found.notes == []


def test_ranks_in_step_are_not_called_late(first):
    twin = replace(first, rank=1)
    found = compare_ranks([rank_facts(first), rank_facts(twin)])
    assert (found.matched, found.skew_max_ns) == (15, 0)
    assert all(lateness.last == lateness.caused_ns == 0 for lateness in found.lateness)


def test_the_table_has_a_row_for_each_rank_and_its_shares_add_up(first):
    found = compare_ranks([rank_facts(first), rank_facts(late(first, 1, 500_000, slice(0, 5)))])
    assert [(row.rank, row.device, row.steps) for row in found.rows] == [(0, 0, 3), (1, 0, 3)]
    for row in found.rows:
        assert row.busy_share + row.idle_share == pytest.approx(1)
        assert row.exposed_communication_share <= row.communication_share
        assert 0 < row.compute_share < row.busy_share
    before, after = found.rows
    assert after.communication_share < before.communication_share
    assert to_builtins(found)["rows"][0]["step_mean_ns"] == before.step_mean_ns


def test_ranks_that_are_not_there_are_said_to_be_missing(first):
    found = compare_ranks([rank_facts(first)])
    assert (found.present, found.missing, found.matched) == ([0], 1, 0)
    assert found.unmatched == 15
    assert found.lateness == []
    assert found.skew_mean_ns is None
    assert "1 of 2 ranks recorded" in found.notes[0]


def test_collectives_of_other_sizes_do_not_match(first):
    changed = [
        replace(one, in_elements=one.in_elements + (one.in_elements == 2049000))
        for one in first.collectives
    ]
    other = replace(first, rank=1, collectives=changed)
    found = compare_ranks([rank_facts(first), rank_facts(other)])
    assert (found.matched, found.unmatched) == (12, 3)


def test_a_step_with_fewer_collectives_on_one_rank_is_left_out(first):
    events = all_reduces(first)
    kept = np.ones(len(first.device), bool)
    kept[events[0]] = False
    columns = {n: getattr(first.device, n)[kept] for n in first.device.__dataclass_fields__}
    other = replace(first, rank=1, device=type(first.device)(**columns))
    found = compare_ranks([rank_facts(first), rank_facts(other)])
    assert (found.matched, found.unmatched) == (10, 5)


def test_different_steps_are_matched_by_order_and_said_so(first):
    names = [name.replace("ProfilerStep#", "ProfilerStep#1") for name in first.names]
    found = compare_ranks([rank_facts(first), rank_facts(replace(first, rank=1, names=names))])
    assert found.matched == 15
    assert "different steps" in found.notes[0]


def test_recordings_without_ranks_are_numbered_as_given(first):
    nameless = replace(first, rank=None, world_size=None)
    found = compare_ranks([rank_facts(nameless), rank_facts(nameless)])
    assert (found.present, found.missing, found.world_size) == ([0, 1], None, None)
    assert "in the order given" in found.notes[0]


def test_a_rank_without_a_device_has_no_shares():
    (row,) = rank_facts(recorded("cpu_only_rank34.pt.trace")).rows
    assert (row.rank, row.device, row.busy_share, row.idle_share) == (34, None, None, None)
    assert row.step_mean_ns == 210109162


def test_facts_are_small_and_can_be_sent_between_processes(first):
    facts = rank_facts(first)
    sent = pickle.dumps(facts)
    assert len(sent) < 10_000
    assert pickle.loads(sent) == facts
