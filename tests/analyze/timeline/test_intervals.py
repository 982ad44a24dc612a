"""Interval arithmetic against sets of single nanoseconds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyze.timeline.intervals import (
    Spans,
    clip,
    covered,
    difference,
    holder,
    intersection,
    merge,
    span,
    total,
    union,
)

TIMES = st.integers(-20, 60)
INTERVALS = st.lists(st.tuples(TIMES, st.integers(0, 15)), max_size=12)


def spans_of(intervals):
    start = np.array([begin for begin, _ in intervals], np.int64)
    return merge(start, start + np.array([length for _, length in intervals], np.int64))


def points_of(intervals):
    return {point for begin, length in intervals for point in range(begin, begin + length)}


def points_in(spans):
    return {p for a, b in zip(*map(np.ndarray.tolist, spans), strict=True) for p in range(a, b)}


def assert_normal(spans: Spans):
    assert (spans.end > spans.start).all()
    assert (spans.start[1:] > spans.end[:-1]).all()
    assert spans.start.dtype == spans.end.dtype == np.int64


@given(INTERVALS)
def test_merging_keeps_every_point_once(intervals):
    spans = spans_of(intervals)
    assert_normal(spans)
    assert points_in(spans) == points_of(intervals)
    assert total(spans) == len(points_of(intervals))


@given(INTERVALS, INTERVALS)
def test_union_intersection_and_difference_are_those_of_sets(first, second):
    a, b = spans_of(first), spans_of(second)
    for operation, expected in (
        (union, points_of(first) | points_of(second)),
        (intersection, points_of(first) & points_of(second)),
        (difference, points_of(first) - points_of(second)),
    ):
        found = operation(a, b)
        assert_normal(found)
        assert points_in(found) == expected


@given(INTERVALS, TIMES, TIMES)
def test_clipping_is_intersecting_with_one_interval(intervals, start, end):
    expected = points_of(intervals) & set(range(start, end))
    found = clip(spans_of(intervals), start, end)
    assert_normal(found)
    assert points_in(found) == expected
    assert points_in(intersection(spans_of(intervals), span(start, end))) == expected


@given(INTERVALS, st.lists(TIMES, max_size=6))
def test_covered_counts_the_points_before_a_time(intervals, times):
    points = points_of(intervals)
    found = covered(spans_of(intervals), np.array(times, np.int64)).tolist()
    assert found == [sum(point < time for point in points) for time in times]


@given(INTERVALS, st.lists(TIMES, max_size=6))
def test_holder_names_the_span_around_a_time(intervals, times):
    spans = spans_of(intervals)
    for time, index in zip(times, holder(spans, np.array(times, np.int64)).tolist(), strict=True):
        assert (time in points_of(intervals)) == (index >= 0)
        assert index < 0 or spans.start[index] <= time < spans.end[index]


def test_touching_intervals_become_one_and_empty_ones_vanish():
    spans = spans_of([(5, 5), (0, 5), (3, 0), (20, 0), (12, 1)])
    assert [column.tolist() for column in spans] == [[0, 12], [10, 13]]


def test_times_near_the_end_of_64_bits_do_not_overflow():
    late = 2**63 - 10
    a, b = span(late, late + 9), span(late + 3, late + 5)
    assert total(difference(a, b)) == 7
    assert covered(a, np.array([late + 4])).tolist() == [4]
