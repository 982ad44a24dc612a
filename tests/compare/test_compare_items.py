"""What of each kind of result is compared with what."""

import pytest
from bench_documents import document, point
from compare_world import item, run, times
from documents import made
from subjects import subject

from stepscope.analyze.run.document import RunSummary
from stepscope.analyze.timeline.document import TraceAnalysis
from stepscope.bench.record import ProcessRecord
from stepscope.bench.results import BenchResult
from stepscope.compare.document import compare_results
from stepscope.compare.open_sides import side_of
from stepscope.compare.quantities import setting_differences
from stepscope.compare.sides import (
    BASELINE_ITEM,
    FIXED_ITEM,
    Side,
    TrialSpeed,
    TuneSpeeds,
    bench_side,
    merge_items,
    run_side,
    trace_side,
    tune_side,
)
from stepscope.compare.verdicts import pair_items
from stepscope.measure.trial.record import TrialRequest
from stepscope.record.errors import UsageError
from stepscope.results.comparison import ResultKind
from stepscope.workloads.measure.record import InferMeasured


def record(key, series, status="ok", **more):
    measured = InferMeasured(series_ms=series, samples=64, calls=2, **more)
    return made(ProcessRecord, key=key, status=status, measured=measured)


def trial(number, step_ms, fixes=(), status="ok", **ask):
    request = TrialRequest(tuple(fixes), **ask)
    return TrialSpeed(request, number, status, tuple(step_ms), samples_per_step=8.0)


def bench(*items):
    return Side(kind=ResultKind.BENCH, name="grid", items=items)


def bench_items(found, records):
    return bench_side("grid", made(BenchResult, found), records).items


def tune(**parts):
    return made(TuneSpeeds, **parts)


def test_a_bench_has_an_item_a_point_with_its_processes():
    one = point(key="k")
    records = [record("k", [1.0, 2.0]), record("k", [3.0], throughput_ms=[4.0]), record("x", [9.0])]
    (found,) = bench_items(document(one), records)
    assert found.series == ((1.0, 2.0), (4.0,))
    assert found.samples == 32.0
    assert found.label == "resnet18 train batch 32 cuda"
    assert found.what == "training"


def test_a_bench_without_its_records_is_known_by_means():
    (found,) = bench_items(document(point(mean_ms=20.0, fixes=["tf32"])), [])
    assert found.series == ((20.0,),)
    assert found.label.endswith("cuda tf32")


def test_processes_that_failed_are_left_out():
    found = bench_items(document(point(key="k")), [record("k", [], status="failed")])
    assert found[0].series == ((20.0,),)


def test_a_bench_in_which_nothing_worked_cannot_be_compared():
    with pytest.raises(UsageError, match="nothing in this bench was measured"):
        bench_items(document(point(mean_ms=20.0) | {"mean_ms": None}), [])


def test_a_tune_is_the_program_as_it_is_and_with_its_fixes():
    trials = [
        trial(1, [50.0], window=True),
        trial(2, [10.0]),
        trial(3, [11.0]),
        trial(4, [5.0], fixes=["pin"]),
        trial(5, [99.0], seed=1),
        trial(6, [], status="failed"),
    ]
    found = tune_side("t", tune(final={"trials": [3, 4]}), trials)
    assert [(one.key, one.series) for one in found.items] == [
        (BASELINE_ITEM, ((11.0,),)),
        (FIXED_ITEM, ((5.0,),)),
    ]


def test_a_tune_without_its_journal_is_known_by_means():
    told = {"step_ms": 10.0, "samples_per_s": 800.0}
    (found,) = tune_side("t", tune(baseline=told), []).items
    assert (found.series, found.samples) == (((10.0,),), 8.0)


def test_a_tune_that_measured_nothing_cannot_be_compared():
    with pytest.raises(UsageError, match="nothing in this tune"):
        tune_side("t", tune(), [])


def test_a_batch_size_search_is_not_compared():
    with pytest.raises(UsageError, match="x is a batch result"):
        side_of(subject("batch", {}))


@pytest.mark.parametrize("series", [(), (0.0, 0.0)])
def test_a_run_whose_steady_steps_took_no_time_cannot_be_compared(series):
    with pytest.raises(UsageError, match="run 7f3a has no steady steps"):
        run_side("run", made(RunSummary, run={"id": "7f3a"}), series)


def test_the_steps_of_a_trace_are_its_series():
    each = [{"start_ns": 0, "end_ns": 2_000_000}, {"start_ns": 2_000_000, "end_ns": 5_000_000}]
    (found,) = trace_side("t", made(TraceAnalysis, steps={"each": each, "count": 2})).items
    assert found.series == ((2.0, 3.0),)


def test_points_are_matched_and_those_of_one_side_named():
    ours = bench(item(times(), key="a", label="A"), item(times(), key="b", label="B"))
    theirs = bench(item(times(), key="b", label="B"), item(times(), key="c", label="C"))
    pairs, left_out = pair_items([ours], [theirs])
    assert [pair.base.key for pair in pairs] == ["b"]
    assert left_out == ["A", "C"]


def test_single_points_are_compared_whatever_they_are_of():
    pairs, _ = pair_items([bench(item(times(), key="a"))], [bench(item(times(), key="b"))])
    assert len(pairs) == 1


def test_nothing_in_common_is_one_line():
    several = bench(item(times(), key="a"), item(times(), key="b"))
    with pytest.raises(UsageError, match="grid is a bench of 2 points, run is a run"):
        pair_items([several], [run()])


def test_results_of_a_side_bring_their_processes_together():
    found = merge_items(
        (bench(item(times(), key="a")), bench(item(times(), key="a", samples=None)))
    )
    assert len(found["a"].series) == 2
    assert found["a"].samples == 32.0


def test_of_a_tune_a_run_meets_what_it_came_to():
    items = item(times(), key=BASELINE_ITEM), item(times(5.0), key=FIXED_ITEM)
    tuned = Side(kind=ResultKind.TUNE, name="t", items=items)
    pairs, _ = pair_items([run()], [tuned])
    assert [pair.other.key for pair in pairs] == [FIXED_ITEM]


def test_of_different_kinds_only_settings_of_both_are_held_against_each_other():
    program = {"program": "/x/train.py", "argv": ["--epochs", "4"]}
    tuned = tune_side("t", tune(run=program, baseline={"step_ms": 10.0}), [])
    assert [row.key for row in setting_differences([run()], [tuned])] == ["arguments"]


def test_a_grid_with_one_slower_point_is_slower():
    ours = bench(*(item(*(times(10, n + 9 * k) for n in range(3)), key=str(k)) for k in range(3)))
    theirs = bench(
        *(item(*(times(10 + k, 5 + n + 9 * k) for n in range(3)), key=str(k)) for k in range(3))
    )
    found = compare_results([ours], [theirs], max_regression=0.05)
    assert (found.verdict, found.exit_code) == ("SLOWER", 1)
    assert [one.verdict for one in found.items] == ["SAME", "SLOWER", "SLOWER"]
    assert found.why == ()
