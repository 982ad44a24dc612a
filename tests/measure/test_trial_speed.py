"""The speed of a trial, on rows made by hand: nothing that a longer run would not have."""

import numpy as np
import pytest
from rowmaking import END, SETUP, START, epoch, evaluation, row, step, table

from stepscope.analyze.run.steps import assemble_steps
from stepscope.measure.speed import (
    FEWEST,
    FEWEST_STEADY,
    MOST,
    LoaderTiming,
    Speed,
    buffered_steps,
    read_loader_timing,
    steady_speed,
    trial_steps,
)
from stepscope.record.facts import Facts, LoaderFact
from stepscope.record.row_log import FLAG_PROFILED, RowKind


def loader(workers, prefetch=2, **more):
    return {
        "id": 0,
        "num_workers": workers,
        "prefetch_factor": prefetch if workers else None,
    } | more


def facts(loaders):
    return Facts(LoaderFact(**one) for one in loaders)


def measured(*rows, workers=0, **more):
    """The speed of a run of these rows, fed by a loader with so many workers."""
    made = table(SETUP, *rows)
    steps = assemble_steps(made, START)
    return steady_speed(
        steps, read_loader_timing(made, facts([loader(workers, **more)]), len(steps))
    )


def mean(found):
    return float(np.mean(found.step_ms))


def test_plain_steps_are_taken_as_they_are():
    found = measured([step(50) for _ in range(40)], END)
    assert mean(found) == pytest.approx(50)
    assert found.samples_per_step == 8
    assert len(found.step_ms) == 39


def test_a_slow_first_step_does_not_count():
    found = measured(step(3000), step(300), [step(50) for _ in range(38)], END)
    assert mean(found) == pytest.approx(50)


def test_compilation_at_the_first_step_does_not_count():
    found = measured(step(50, compile=20_000), [step(50) for _ in range(39)], END)
    assert mean(found) == pytest.approx(50)


def bursts(rounds, workers, long, short):
    return [step(long if n == 0 else short) for _ in range(rounds) for n in range(workers)]


def test_bursts_of_workers_count_by_their_mean():
    """A median would tell 9.4 times as fast."""
    base = measured([step(50) for _ in range(40)], END)
    found = measured(bursts(10, 8, 42.8, 5.3), END, workers=8)
    assert mean(base) / mean(found) == pytest.approx(5.0, rel=0.01)
    assert 50 / float(np.median(found.step_ms)) == pytest.approx(9.4, rel=0.01)
    assert len(found.step_ms) % 8 == 0


@pytest.mark.parametrize("cut", range(7))
def test_a_round_of_workers_that_is_not_whole_does_not_count(cut):
    rows = bursts(10, 7, 70, 0.5)
    found = measured(rows[: len(rows) - cut], END, workers=7)
    assert mean(found) == pytest.approx((70 + 6 * 0.5) / 7)


def test_steps_fed_by_buffers_that_were_full_at_the_start_do_not_count():
    """Workers worked ahead while the first step compiled: 2 x 2 x 2 steps wait for nothing."""
    fed = [step(1) for _ in range(8)]
    found = measured(step(1, compile=9000), fed, bursts(16, 2, 39, 1), END, workers=2)
    assert mean(found) == pytest.approx(20)
    assert found.first >= 8


def test_buffers_are_counted_in_steps_where_a_step_takes_several_batches():
    rows = [step(10, batches=4) for _ in range(40)]
    made = table(SETUP, rows, END)
    assert read_loader_timing(made, facts([loader(8)]), 40) == LoaderTiming(cycle=2, buffer=4)
    assert measured(rows, END, workers=8).first == 8


def short_epochs(epochs, length, start):
    """The first of them begins with the setup."""
    rows = [step(10) for _ in range(length)]
    return [[*([epoch(start)] if number else []), *rows] for number in range(epochs)]


def test_the_starts_of_short_epochs_count():
    """Starting workers anew takes as long as ten steps, with every ten: half of the time."""
    found = measured(*short_epochs(5, 10, 100), END, workers=2)
    kept = measured(*short_epochs(5, 10, 0.5), END, workers=2, persistent_workers=True)
    assert mean(found) == pytest.approx(20)
    assert mean(kept) == pytest.approx(10.05)
    assert len(found.step_ms) == 30


def test_the_start_of_an_epoch_is_no_unsteady_step():
    found = measured(*short_epochs(5, 10, 100), END, workers=2)
    assert max(found.step_ms) == pytest.approx(min(found.step_ms))


def test_the_first_batch_of_workers_just_started_counts_with_the_epochs_start():
    rows = [[epoch(20), step(10, epoch_start=80), *[step(10)] * 9] for _ in range(5)]
    assert mean(measured(*rows, END, workers=2)) == pytest.approx(20)


@pytest.mark.parametrize("after", [2, 9, 25])
def test_a_single_start_of_an_epoch_counts_by_the_length_of_epochs(after):
    rows = [[step(10) for _ in range(30)], epoch(60), [step(10) for _ in range(after)]]
    assert mean(measured(*rows, END)) == pytest.approx(10 + 60 / 30)


def test_evaluation_and_checkpoints_in_the_middle_do_not_count():
    between = [epoch(30), *[evaluation(9) for _ in range(10)], row(RowKind.SAVE, save=500)]
    found = measured([step(10)] * 20, between, [step(10)] * 20, END)
    assert mean(found) == pytest.approx(10)


def test_the_loader_of_an_evaluation_does_not_feed_steps():
    rows = [[step(10)] * 10, row(RowKind.EPOCH, who=1, epoch_start=5), evaluation()]
    made = table(SETUP, *rows, *rows, END)
    loaders = [loader(0), loader(8) | {"id": 1}]
    assert read_loader_timing(made, facts(loaders), 20) == LoaderTiming()


def test_a_program_without_a_loader_has_no_buffers():
    assert read_loader_timing(table([step(10, batches=0)] * 9, END), Facts(), 9) == LoaderTiming()


def test_a_host_that_runs_ahead_of_the_device_does_not_flatter():
    """4 ms of launching each, 10 ms of work: after 40 steps the device is 240 ms behind."""
    rows = [step(4, device=(0, 10, 0, 0, 0)) for _ in range(40)]
    found = measured(rows, row(RowKind.END, wait=240))
    assert mean(found) == pytest.approx(10, rel=0.03)


def test_a_host_held_up_by_a_full_queue_is_not_charged_twice():
    """It runs ahead by 60 ms in the first ten steps, and then only as fast as the device."""
    rows = [step(4 if n < 10 else 10, device=(0, 10, 0, 0, 0)) for n in range(40)]
    assert mean(measured(rows, row(RowKind.END, wait=60))) == pytest.approx(10, rel=0.03)


def test_a_host_that_waits_now_and_then_has_even_steps():
    """Every 20th step reads the loss: it takes as long as all that was left to the device."""
    held = [step(4 if n % 20 else 10 + 6 * 19, device=(0, 10, 0, 0, 0)) for n in range(1, 51)]
    found = measured(held, row(RowKind.END, wait=60))
    assert mean(found) == pytest.approx(10, rel=0.01)
    assert np.std(found.step_ms) < 0.5


def test_device_times_that_do_not_fit_the_end_are_not_believed():
    """The device seems to fall behind by 6 ms a step, and yet is done when the host is."""
    found = measured(
        [step(4, device=(0, 10, 0, 0, 0)) for _ in range(40)], row(RowKind.END, wait=0)
    )
    assert mean(found) == pytest.approx(4)


def test_without_device_times_running_ahead_is_taken_to_grow_evenly():
    found = measured([step(4)] * 40, row(RowKind.END, wait=240))
    assert mean(found) == pytest.approx(10, rel=0.03)


def test_steps_under_kernel_level_recording_do_not_count():
    window = [step(90, flags=FLAG_PROFILED) for _ in range(6)]
    found = measured([step(10)] * 12, window, [step(10)] * 12, END)
    assert mean(found) == pytest.approx(10)


def test_a_run_without_steps_has_no_speed():
    assert steady_speed(assemble_steps(table(SETUP, END), START), LoaderTiming()) == Speed(
        (), None, 0
    )


def test_samples_are_unknown_where_nothing_counts_them():
    assert measured([step(10, samples=0)] * 20, END).samples_per_step is None


def scout(step_ms, count=20, first=4):
    return Speed((step_ms,) * count, 8.0, first)


@pytest.mark.parametrize(
    ("found", "feed", "more", "steps"),
    [
        (scout(100), LoaderTiming(), {}, 24),  # two seconds
        (scout(2000), LoaderTiming(), {}, FEWEST),
        (scout(1), LoaderTiming(), {}, MOST),
        (scout(100), LoaderTiming(cycle=8, buffer=16), {}, 64),  # four rounds of full buffers
        (scout(100), LoaderTiming(), {"buffer": 32}, 128),
        (scout(100), LoaderTiming(epoch=20, start_ms=90), {}, 61),  # three epochs
        (scout(100), LoaderTiming(epoch=20), {"buffer": 1}, 61),
        (
            scout(100),
            LoaderTiming(epoch=50, start_ms=90),
            {},
            59,
        ),  # three are too many: one start is seen
        (scout(100), LoaderTiming(epoch=100), {"buffer": 16, "waiting": 0.2}, 109),
        (
            scout(100),
            LoaderTiming(epoch=100),
            {"buffer": 16, "waiting": 0.8},
            301,
        ),  # workers speed it up
        (scout(100), LoaderTiming(epoch=500, start_ms=900), {}, 24),
        (scout(100), LoaderTiming(epoch=20, start_ms=2), {}, 24),  # starts that take no time
        (scout(1), LoaderTiming(), {"made": 90}, 90),
        (Speed((), None, 0), LoaderTiming(), {}, FEWEST),
    ],
)
def test_a_trial_is_as_long_as_the_program_asks_for(found, feed, more, steps):
    assert trial_steps(found, feed, **more) == steps


def test_rounds_follow_workers_and_what_each_keeps_ready():
    assert buffered_steps(4, None) == 8
    assert buffered_steps(4, 3) == 12
    assert buffered_steps(4, 2, batches_per_step=4) == 2


def test_epochs_are_as_long_as_the_loaders_sizes_say():
    made = table(SETUP, [step(10)] * 20, END)
    known = loader(0, samples=100, batch_size=8)
    assert read_loader_timing(made, facts([known]), 20).epoch == 13
    assert read_loader_timing(made, facts([known | {"drop_last": True}]), 20).epoch == 12
    assert read_loader_timing(made, facts([known | {"samples": None}]), 20).epoch == 0


def test_fewer_steady_steps_than_tell_anything_are_left_to_the_caller():
    found = measured([step(10)] * 12, END, workers=4)
    assert len(found.step_ms) < FEWEST_STEADY
