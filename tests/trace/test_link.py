"""Launches and parents."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.record.timeline import NOTHING, HostKind
from stepscope.trace.link import launches_nothing, link_launches, link_parents

Call = tuple[str, int, int]  # name, start, correlation


def launches(calls: list[Call], work: list[tuple[int, int]]) -> list[int]:
    """Of work as (start, correlation)."""
    names = sorted({name for name, _, _ in calls})
    return link_launches(
        np.full(len(calls), HostKind.RUNTIME, np.uint8),
        np.array([names.index(name) for name, _, _ in calls], np.int32),
        np.array([start for _, start, _ in calls], np.int64),
        np.array([correlation for _, _, correlation in calls], np.int64),
        names,
        np.array([start for start, _ in work], np.int64),
        np.array([correlation for _, correlation in work], np.int64),
    ).tolist()


def test_work_is_joined_by_correlation() -> None:
    calls = [("cudaLaunchKernel", 1, 10), ("cuLaunchKernelEx", 2, 11), ("cudaMemcpyAsync", 3, 12)]
    assert launches(calls, [(5, 12), (6, 10), (7, 11), (8, 99), (9, NOTHING)]) == [2, 0, 1, -1, -1]


def test_all_kernels_of_a_graph_have_its_launch() -> None:
    assert launches([("cudaGraphLaunch", 1, 4)], [(n, 4) for n in range(2, 9)]) == [0] * 7


def test_of_several_calls_the_last_before_the_work_launched_it() -> None:
    calls = [("cudaLaunchKernel", start, 5) for start in (0, 10, 20, 30)]
    assert launches(calls, [(5, 5), (10, 5), (25, 5), (99, 5)]) == [0, 1, 2, 3]


def test_work_before_all_its_calls_has_the_first() -> None:
    calls = [("cudaLaunchKernel", start, 5) for start in (10, 20)]
    assert launches(calls, [(3, 5)]) == [0]


def test_calls_that_only_ask_launch_nothing() -> None:
    calls = [("cudaLaunchKernel", 1, 5), ("cudaStreamIsCapturing", 2, 5), ("hipEventQuery", 3, 5)]
    assert launches(calls, [(9, 5)]) == [0]
    assert launches(calls[1:], [(9, 5)]) == [NOTHING]
    some = ["cudaMemsetAsync", "hipExtModuleLaunchKernel", "cudaGraphLaunch", "cudaEventQuery"]
    assert launches_nothing(some).tolist() == [False, False, False, True]


def test_only_runtime_calls_launch() -> None:
    one = np.array([3], np.int64)
    kind = np.array([HostKind.OPERATOR], np.uint8)
    found = link_launches(kind, np.array([0], np.int32), one, one, ["x"], one, one)
    assert found.tolist() == [NOTHING]


def test_nothing_recorded_nothing_joined() -> None:
    assert launches([], [(1, 2)]) == [NOTHING]
    assert launches([("cudaLaunchKernel", 1, 2)], []) == []


def parents(spans: list[tuple[int, int, int]]) -> list[int]:
    """Of spans as (thread, start, duration) in order of start, longer first."""
    thread, start, duration = (np.array([s[n] for s in spans], np.int64) for n in range(3))
    return link_parents(thread, start, duration).tolist()


def test_spans_nest_on_their_own_thread() -> None:
    spans = [(0, 0, 100), (1, 5, 50), (0, 10, 20), (0, 12, 5), (1, 12, 5), (0, 30, 70)]
    assert parents(spans) == [-1, -1, 0, 2, 1, 0]


def test_a_moment_at_the_end_is_outside() -> None:
    assert parents([(0, 0, 10), (0, 5, 5), (0, 10, 0)]) == [-1, 0, -1]
    assert parents([(0, 0, 20), (0, 5, 5), (0, 10, 0)]) == [-1, 0, 0]


def test_spans_that_cross_are_not_inside() -> None:
    assert parents([(0, 0, 10), (0, 5, 10), (0, 6, 2)]) == [-1, -1, 1]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=60))
def test_the_parent_is_the_nearest_earlier_span_around(spans: list[tuple[int, int, int]]) -> None:
    spans.sort(key=lambda span: (span[1], -span[2]))
    wanted = []
    for n, (thread, start, duration) in enumerate(spans):
        end = start + duration
        around = [
            m
            for m, (t, s, d) in enumerate(spans[:n])
            if t == thread and s + d >= end and s + d > start
        ]
        wanted.append(around[-1] if around else NOTHING)
    assert parents(spans) == wanted


def test_many_siblings_are_quick() -> None:
    size = 300_000
    start = np.arange(size, dtype=np.int64)
    duration = np.ones(size, np.int64)
    duration[0] = size
    parent = link_parents(np.zeros(size, np.int32), start, duration)
    assert (parent[1:] == 0).all()


def test_calls_on_the_way_out_of_a_deep_recursion_are_their_own_levels() -> None:
    depth = 500  # more than the rounds in which rows skip at once
    levels = [(0, n, 4 * depth - 3 * n) for n in range(depth)]
    calls = [(0, 4 * depth - 2 * n - 1, 1) for n in reversed(range(depth))]
    assert parents(levels + calls) == [*range(-1, depth - 1), *reversed(range(depth))]
