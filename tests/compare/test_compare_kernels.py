"""Kernels of two steps matched, and what is said of them."""

import pytest
from handmade import Handmade

from stepscope.compare.kernels import (
    Matched,
    TypicalStep,
    Work,
    compare_kernels,
    kernel_rows,
    match_work,
    typical_step,
)
from stepscope.compare.why import find_causes, work_changes
from stepscope.report.story.compare import cause_sentence
from stepscope.results.comparison import Cause, PhaseChange, WorkUnit

KERNELS, OPERATORS = WorkUnit.KERNELS, WorkUnit.OPERATORS


def work(name, ms=1.0, operator="aten::mm", phase="forward", line=None):
    return Work(name, ms, operator, phase, line)


def table(base, other, unit=KERNELS):
    return compare_kernels(TypicalStep(unit, tuple(base)), TypicalStep(unit, tuple(other)))


def sentences(*arguments):
    return [cause_sentence(cause) for cause in find_causes(*arguments)]


def told(kernels):
    """The largest change of work, in words."""
    first = work_changes(kernels)[0]
    return cause_sentence(Cause(first.phase, first.delta_ms, work=first)).partition(": ")[2]


FORWARD = PhaseChange("forward", 5.0, 8.0, 3.0, 1.0, 1.0)


def test_kernels_are_matched_by_name_and_position():
    base, other = ([work(name) for name in names] for names in ("abcb", "axbcb"))
    assert match_work(base, other) == Matched([(0, 0), (1, 2), (2, 3), (3, 4)], [], [1])


def test_very_long_steps_are_matched_in_turn(monkeypatch):
    monkeypatch.setattr("stepscope.compare.kernels._MOST", 0)
    base, other = ([work(name) for name in names] for names in ("aab", "aba"))
    assert match_work(base, other) == Matched([(0, 0), (1, 2), (2, 1)], [], [])


def test_changes_add_up_to_that_of_the_step():
    base = [work("a", 1.0), work("b", 2.0), work("c", 4.0)]
    other = [work("a", 1.5), work("n", 8.0), work("c", 3.0)]
    found = table(base, other)
    assert found.delta_ms == pytest.approx(12.5 - 7.0)
    assert sum(row.delta_ms for row in found.rows) == pytest.approx(found.delta_ms)
    for row in found.rows:
        assert row.base_ms >= row.gone_ms
        assert row.other_ms >= row.new_ms


def test_each_kernel_is_new_gone_slower_faster_more_fewer_or_the_same():
    base = [work(name, ms) for name, ms in [("s", 1), ("f", 2), ("m", 1), ("g", 1), ("e", 1)]]
    other = [work(n, ms) for n, ms in [("s", 2), ("f", 1), ("m", 1), ("m", 1), ("n", 1), ("e", 1)]]
    changes = {row.name: row.change for row in kernel_rows(base, other)}
    assert changes == {
        "s": "slower", "f": "faster", "m": "more", "g": "gone", "n": "new", "e": "same"
    }  # fmt: skip


def test_a_device_is_not_compared_with_a_host():
    assert (
        compare_kernels(TypicalStep(KERNELS, (work("a"),)), TypicalStep(OPERATORS, (work("a"),)))
        is None
    )


def test_new_kernels_are_told_with_operator_and_place():
    line = "proj/model.py(88): forward"
    new = [work("gather", 0.3, "aten::index", line=line)] * 12
    found = table([work("a")], [work("a"), *new])
    assert told(found) == "12 new kernels from aten::index in forward (model.py:88)"
    assert work_changes(found)[0].delta_ms == pytest.approx(3.6)


@pytest.mark.parametrize(
    ("base", "other", "text"),
    [
        ("gg", "", "2 kernels of aten::mm gone"),
        ("gg", "n", "aten::mm: 1 kernel instead of 2"),
    ],
)
def test_kernels_that_went_or_were_replaced_are_told(base, other, text):
    found = table([work(name) for name in base], [work(name) for name in other])
    assert told(found) == text


def test_operators_of_a_host_are_told_as_calls():
    found = table([], [work("aten::index", operator="aten::index")] * 3, OPERATORS)
    assert told(found) == "3 new calls of aten::index"


def test_other_work_explains_a_phase_before_work_that_only_took_longer():
    kernels = table([work("a", 1.0, "aten::mm")], [work("a", 3.0, "aten::mm"),
                                                   work("n", 1.0, "aten::index")])  # fmt: skip
    assert sentences([FORWARD], kernels, []) == ["forward +3.00 ms: 1 new kernel from aten::index"]


def test_what_explains_too_little_of_a_phase_is_not_named():
    kernels = table([work("a", 1.0)], [work("a", 1.1)])
    assert sentences([FORWARD], kernels, []) == ["forward +3.00 ms"]


def test_without_phases_the_recorded_work_speaks():
    kernels = table([work("a", 1.0)], [work("a", 2.0)])
    assert sentences([], kernels, []) == ["forward +1.00 ms: 1 kernel of aten::mm slower"]


def trained(extra=0):
    """Two steps, each with a matrix product and, of `extra`, lookups."""
    made = Handmade()
    for step in range(2):
        at = step * 1000
        made.annotation(f"ProfilerStep#{step}", at, at + 1000)
        made.operator("aten::mm", at + 10, at + 60)
        made.work(at + 100, at + 300 + step, (at + 20, at + 30), "gemm")
        for n in range(extra):
            begin = at + 100 + 20 * n
            made.operator("aten::index", begin, begin + 10)
            made.work(at + 400 + 10 * n, at + 405 + 10 * n, (begin + 2, begin + 4), "gather")
    return made.timeline()


def test_a_typical_step_of_a_timeline_is_compared_with_another():
    found = compare_kernels(typical_step(trained(), None), typical_step(trained(3), None))
    assert (found.base_count, found.other_count, found.new) == (1, 4, 3)
    assert found.rows[0].operator == "aten::index"
    assert found.delta_ms == pytest.approx(15e-6)


def test_without_a_device_operators_count_their_own_time():
    made = Handmade()
    made.annotation("ProfilerStep#0", 0, 1000)
    made.operator("aten::linear", 100, 500)
    made.operator("aten::addmm", 200, 400)
    found = typical_step(made.timeline(), None)
    assert found.unit == OPERATORS
    assert {one.name: one.ms for one in found.works} == {
        "aten::linear": pytest.approx(200e-6), "aten::addmm": pytest.approx(200e-6)
    }  # fmt: skip


def test_lines_come_from_the_recording_with_stacks():
    made = Handmade()
    made.annotation("ProfilerStep#0", 0, 1000)
    made.python("proj/model.py(88): forward", 5, 500)
    made.operator("aten::index", 100, 200)
    made.work(300, 320, (110, 120), "gather")
    found = typical_step(trained(1), made.timeline())
    assert {one.name: one.line for one in found.works} == {
        "gemm": None, "gather": "proj/model.py(88): forward"
    }  # fmt: skip
