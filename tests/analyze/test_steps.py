"""From rows to steps, on rows made by hand. Times are milliseconds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rowmaking import MS, PHASES, START, row, table

from stepscope.analyze.run.steps import HOST_PHASES, assemble_steps
from stepscope.analyze.run.summary import outlier_steps
from stepscope.analyze.timeline.document import StepOutlier
from stepscope.record.row_log import FLAG_PROFILED, RowKind


def step(**more):
    """A plain training step of 10 ms."""
    plain = {"data_wait": 1, "forward": 3, "backward": 4, "optimizer": 1, "other": 1}
    counted = {"forwards": 1, "backwards": 1, "batches": 1, "samples": 8, "loss": 0.5}
    return row(RowKind.STEP, **(plain | counted | more))


def evaluation(ms=2, **more):
    return row(RowKind.EVAL, **({"forward": ms, "forwards": 1, "batches": 1, "samples": 8} | more))


def epoch(ms=3, **more):
    return row(RowKind.EPOCH, **({"epoch_start": ms} | more))


SETUP = row(RowKind.EPOCH, other=100)
END = row(RowKind.END, other=5)


def wall(rows):
    return float(rows["end_ns"][-1] - START)


def check(steps, rows):
    """What holds for every run: phases add up to steps, steps and account to the wall time."""
    sums = sum(steps.host[name] for name in HOST_PHASES)
    np.testing.assert_allclose(sums, steps.duration, rtol=1e-12)
    assert (steps.duration >= 0).all()
    assert all(value >= 0 for value in steps.account.values())
    outside = sum(steps.account.values())
    whole = steps.duration.sum() + steps.behind + outside
    assert whole == pytest.approx(wall(rows), rel=1e-12)


def assembled(*rows):
    made = table(*rows)
    steps = assemble_steps(made, START)
    check(steps, made)
    return steps


def ms(values):
    return (np.asarray(values) / MS).round(6).tolist()


def test_a_plain_loop():
    steps = assembled(SETUP, [step()] * 4, END)
    assert ms(steps.duration) == [10] * 4
    assert {name: ms(steps.host[name])[2] for name in HOST_PHASES} == {
        "data_wait": 1, "h2d": 0, "forward": 3, "backward": 4, "optimizer": 1, "wait": 0,
        "other": 1,
    }  # fmt: skip
    assert steps.samples.tolist() == [8] * 4
    assert steps.loss.tolist() == [0.5] * 4
    assert (steps.what, steps.inferred) == ("training", False)
    assert steps.by_optimizer == {0: 4}
    assert not steps.in_window.any()


def test_the_programs_start_is_setup_and_its_end_shutdown():
    steps = assembled(SETUP, [step()] * 3, END)
    assert ms(steps.account["setup"]) == 100
    assert ms(steps.account["shutdown"]) == 5


def test_only_what_computes_in_the_first_row_belongs_to_a_step():
    steps = assembled(step(other=2000, h2d=300, wait=30), [step()] * 3, END)
    assert ms(steps.duration) == [9, 10, 10, 10]
    assert ms(steps.account["setup"]) == 2330


def test_a_step_ends_where_its_optimizer_has_stepped():
    rows = table(SETUP, [step()] * 3)
    assert assemble_steps(rows, START).end.tolist() == rows["end_ns"][1:].tolist()


def test_accumulation_is_one_step_from_the_first():
    micro = row(RowKind.BACKWARD, forward=3, backward=4, backwards=1, samples=8, loss=0.2)
    last = row(RowKind.STEP, optimizer=2)
    later = row(
        RowKind.STEP, forward=12, backward=16, optimizer=2, backwards=4, samples=32, loss=0.4
    )
    steps = assembled(SETUP, [micro] * 4, last, [later] * 3, END)
    assert ms(steps.duration) == [30] * 4
    assert steps.samples.tolist() == [32] * 4
    assert steps.loss == pytest.approx([0.2, 0.4, 0.4, 0.4])


def test_a_gans_step_holds_both_optimizers():
    critic, generator = step(who=0), step(who=1)
    steps = assembled(SETUP, [critic, generator] * 3, END)
    assert ms(steps.duration) == [20] * 3
    assert steps.by_optimizer == {0: 3, 1: 3}


def test_a_skewed_number_of_backwards_weighs_the_loss():
    first = row(RowKind.BACKWARD, backward=1, backwards=3, loss=1.0)
    steps = assembled(SETUP, first, row(RowKind.STEP, optimizer=1, backwards=1, loss=5.0), END)
    assert steps.loss.tolist() == [2.0]


def test_a_loss_that_came_alone_is_kept_to_the_last_bit():
    odd = 0.1 + 0.2
    steps = assembled(SETUP, [step(loss=odd, backwards=3)] * 3, END)
    assert steps.loss.tolist() == [odd] * 3


def test_without_a_loss_there_is_none():
    steps = assembled(SETUP, [step(loss=math.nan)] * 3, END)
    assert np.isnan(steps.loss).all()


def test_evaluation_between_epochs_is_no_part_of_a_step():
    steps = assembled(
        SETUP, [step()] * 5, epoch(3), [evaluation(2)] * 4, epoch(3), [step()] * 5, END
    )
    assert ms(steps.duration) == [10] * 10
    assert ms(steps.account["evaluation"]) + ms(steps.account["epoch_start"]) == 14
    assert ms(steps.account["evaluation"]) >= 8
    assert steps.samples.tolist() == [8] * 10


def test_what_follows_an_evaluation_up_to_the_next_phase_is_still_evaluation():
    after = step(other=5, lead=4)
    steps = assembled(SETUP, [step()] * 5, [evaluation(2)] * 3, after, [step()] * 4, END)
    assert ms(steps.duration) == [10] * 10
    assert ms(steps.account["evaluation"]) == 10


def test_evaluation_after_the_last_step_is_not_shutdown():
    steps = assembled(SETUP, [step()] * 4, [evaluation(2)] * 3, END)
    assert ms(steps.account["evaluation"]) >= 6
    assert ms(steps.account["shutdown"]) <= 5


def test_what_the_device_still_took_after_the_last_step_belongs_to_the_steps():
    steps = assembled(SETUP, [step()] * 4, row(RowKind.END, wait=20, other=5))
    assert ms(steps.duration) == [10] * 4
    assert ms(steps.behind) == 20
    assert ms(steps.account["shutdown"]) == 5
    assert ms(steps.mean(np.full(4, True))) == (40 + 20) / 4


def launched(**more):
    """4 ms of launching what takes the device 10 ms."""
    device = {"device": (0, 10, 0, 0, 0)}
    return step(data_wait=0, forward=2, backward=1, optimizer=1, other=0, **(device | more))


def after(first, count):
    return np.arange(count) >= first


def test_what_the_device_had_left_of_warming_up_is_no_part_of_the_steps_after_it():
    steps = assembled(SETUP, [launched()] * 60, row(RowKind.END, wait=360))
    assert ms(steps.mean(after(0, 60))) == 10
    assert ms(steps.mean(after(20, 60))) == pytest.approx(10)
    assert ms(steps.fell_behind(after(20, 60))) == pytest.approx(240)


def test_what_is_left_to_the_device_where_a_recording_begins_belongs_to_the_steps_before():
    window = [launched(flags=FLAG_PROFILED, observer=100)] * 5
    steps = assembled(
        SETUP, [launched()] * 20, window, [launched()] * 20, row(RowKind.END, wait=20 * 6)
    )
    assert ms(steps.mean(~steps.in_window)) == pytest.approx(10)
    assert ms(steps.done()[steps.in_window]) == [4] * 5


def test_a_step_that_stands_out_is_told_unless_it_follows_a_recording():
    window = [step(flags=FLAG_PROFILED)] * 3
    slow = step(other=90)
    steps = assembled(SETUP, [step()] * 12, slow, [step()] * 5, window, slow, [step()] * 12, END)
    assert outlier_steps(steps, ~steps.in_window) == [StepOutlier(13, pytest.approx(99))]


def test_a_host_that_falls_back_to_the_device_is_not_made_faster():
    """It is ahead while it warms up, and then takes longer than the device."""
    steps = assembled(SETUP, [launched()] * 10, [step(device=(0, 5, 0, 0, 0))] * 30, END)
    assert ms(steps.mean(after(10, 40))) == 10


def test_a_wait_after_evaluation_says_nothing_of_the_steps():
    steps = assembled(SETUP, [step()] * 4, evaluation(2), row(RowKind.END, wait=20, other=5))
    assert steps.behind == 0


def test_evaluation_before_the_first_step_is_no_part_of_it():
    steps = assembled(SETUP, [evaluation(20)] * 2, [step()] * 4, END)
    assert ms(steps.duration) == [10] * 4
    assert ms(steps.account["evaluation"]) == 40


def test_evaluation_before_the_only_step_is_no_part_of_it():
    steps = assembled(SETUP, [evaluation(20)] * 2, step(), END)
    assert ms(steps.duration) == [10]
    assert ms(steps.account["evaluation"]) == 40


def test_what_leads_up_to_an_evaluation_is_evaluation():
    steps = assembled(
        SETUP, [step()] * 5, epoch(3, other=2), [evaluation(2)] * 4, epoch(3), [step()] * 5, END
    )
    assert ms(steps.duration) == [10] * 10
    assert ms(steps.account["evaluation"]) >= 8 + 2


def test_calls_without_gradients_in_each_step_are_part_of_it():
    act = row(RowKind.EVAL, forward=2, other=1, forwards=1)
    steps = assembled(SETUP, [*[act] * 5, step()] * 6, END)
    assert ms(steps.duration) == [25] * 6
    assert ms(steps.host["forward"]) == [13] * 6
    assert ms(steps.account.get("evaluation", 0)) == 0


def test_acting_between_updates_is_part_of_the_steps_that_learn_from_it():
    act = row(RowKind.ACT, forward=2, other=8, forwards=1)
    steps = assembled(SETUP, [*[act] * 5, *[step()] * 4] * 3, [act] * 2, END)
    assert ms(steps.duration) == [60, 10, 10, 10] * 3
    assert ms(steps.host["other"][:1]) == [40 + ms(steps.host["other"][1:2])[0]]
    assert (ms(steps.account["evaluation"]), steps.evaluations) == (20, 1)  # after the last step


def test_evaluations_are_counted_by_their_beginnings():
    steps = assembled(SETUP, [*[step()] * 4, *[evaluation(2)] * 3] * 3, END)
    assert steps.evaluations == 3


def test_iterators_made_between_epochs_are_epoch_starts():
    steps = assembled(SETUP, [step()] * 5, epoch(30, other=2), [step()] * 5, END)
    assert ms(steps.duration) == [10] * 10
    assert ms(steps.account["epoch_start"]) == 32


def test_an_iterator_made_in_each_step_is_part_of_it():
    steps = assembled(SETUP, [epoch(5, other=1), step()] * 6, END)
    assert ms(steps.duration) == [16] * 6
    assert ms(steps.host["data_wait"]) == [6] * 6
    assert ms(steps.host["other"]) == [2] * 6
    assert ms(steps.account.get("epoch_start", 0)) == 0


def test_the_wait_for_fresh_workers_is_the_epochs_not_the_steps():
    steps = assembled(SETUP, [step()] * 4, epoch(1), step(epoch_start=50), [step()] * 4, END)
    assert ms(steps.duration) == [10] * 9
    assert ms(steps.account["epoch_start"]) == 51


def test_checkpoints_are_no_part_of_a_step():
    save = row(RowKind.SAVE, save=70, other=3)
    steps = assembled(SETUP, [step()] * 3, save, [step()] * 3, END)
    assert ms(steps.duration) == [10] * 6
    assert ms(steps.account["checkpoint"]) == 73


def test_a_checkpoint_within_a_step_leaves_the_step_its_own_time():
    save = row(RowKind.SAVE, save=70, forward=3, forwards=1)
    rest = row(RowKind.STEP, backward=4, optimizer=1, data_wait=1, other=1)
    steps = assembled(SETUP, [step()] * 3, save, rest, [step()] * 3, END)
    assert ms(steps.duration) == [10] * 7
    assert ms(steps.account["checkpoint"]) == 70


def test_compiling_is_no_part_of_a_step():
    steps = assembled(SETUP, step(compile=500), [step()] * 3, END)
    assert ms(steps.duration) == [10] * 4
    assert ms(steps.account["compile"]) == 500


def test_compiling_in_the_very_first_row_is_not_setup():
    steps = assembled(step(compile=500, other=200), [step()] * 3, END)
    assert ms(steps.account["compile"]) == 500
    assert ms(steps.account["setup"]) == 200


def test_steps_of_the_window_are_flagged_and_the_recorders_own_work_is_not_theirs():
    begin = row(RowKind.WINDOW, observer=300)
    stop = row(RowKind.WINDOW, observer=900, flags=FLAG_PROFILED)
    recorded, after = step(flags=FLAG_PROFILED, forward=5), step(flags=FLAG_PROFILED)
    steps = assembled(SETUP, [step()] * 3, begin, [recorded] * 2, stop, after, [step()] * 2, END)
    assert ms(steps.account["window"]) == 1200
    assert ms(steps.duration) == [10, 10, 10, 12, 12, 10, 10, 10]
    assert steps.in_window.tolist() == [False] * 3 + [True] * 3 + [False] * 2


def test_marks_of_the_program_decide_alone():
    mark = row(RowKind.MARK, other=1)
    steps = assembled(SETUP, [step(), step(), mark] * 3, END)
    assert ms(steps.duration) == [21] * 3
    assert (steps.what, steps.inferred) == ("training", False)
    assert steps.by_optimizer == {0: 6}


def test_marks_without_any_backward_are_inference():
    mark = row(RowKind.MARK, forward=2, forwards=1)
    steps = assembled(SETUP, [mark] * 3, END)
    assert (steps.what, len(steps)) == ("inference", 3)


def test_backwards_alone_are_inferred_steps():
    manual = row(RowKind.BACKWARD, forward=2, backward=3, backwards=1, loss=0.5)
    steps = assembled(SETUP, [manual] * 5, END)
    assert (len(steps), steps.what, steps.inferred) == (5, "training", True)
    assert ms(steps.duration) == [5] * 5


@pytest.mark.parametrize("kind", [RowKind.CALL, RowKind.EVAL])
def test_calls_alone_are_inference(kind):
    call = row(kind, data_wait=1, forward=2, forwards=1, samples=4)
    steps = assembled(SETUP, [call] * 5, END)
    assert (len(steps), steps.what, steps.inferred) == (5, "inference", True)
    assert ms(steps.duration) == [3] * 5
    assert ms(steps.account.get("evaluation", 0)) == 0
    assert steps.samples.tolist() == [4] * 5


def test_of_two_models_called_in_turn_the_busier_one_counts():
    encode, decode = row(RowKind.EVAL, forward=2, who=0), row(RowKind.EVAL, forward=1, who=1)
    steps = assembled(SETUP, [encode, decode, decode] * 3, END)
    assert len(steps) == 6


def test_batches_alone():
    batch = row(RowKind.BATCH, data_wait=4, other=1, batches=1, samples=16)
    steps = assembled(SETUP, [batch] * 4, END)
    assert (len(steps), steps.what, steps.inferred) == (4, "batches", True)
    assert steps.samples.tolist() == [16] * 4


def test_without_a_loader_samples_are_those_the_model_received():
    steps = assembled(SETUP, [step(samples=0, batches=0, inputs=12)] * 3, END)
    assert steps.samples.tolist() == [12] * 3


def test_no_rows_at_all():
    for rows in (np.zeros(0), table()):
        steps = assemble_steps(rows, START)
        assert (len(steps), steps.what) == (0, "nothing")
        assert steps.account == {}


def test_rows_never_written_do_not_count():
    rows = table(SETUP, [step()] * 3)
    padded = np.concatenate([rows, np.zeros(5, rows.dtype)])
    assert len(assemble_steps(padded, START)) == 3


def test_a_program_without_a_step_only_prepared():
    rows = table(epoch(), row(RowKind.SAVE, save=5), END)
    steps = assemble_steps(rows, START)
    assert (len(steps), steps.what) == (0, "nothing")
    assert sum(steps.account.values()) == wall(rows)


def test_a_run_cut_short_keeps_its_whole_steps():
    steps = assembled(SETUP, [step()] * 3, row(RowKind.BACKWARD, forward=3, backward=4))
    assert ms(steps.duration) == [10] * 3


def test_one_step_alone():
    steps = assembled(step(other=100))
    assert ms(steps.duration) == [9]


def test_device_times_add_up_over_the_rows_of_a_step():
    first = row(RowKind.BACKWARD, forward=1, backward=1, device=(0, 2, 3, 0, 1))
    last = row(RowKind.STEP, optimizer=1, device=(0, 0, 0, 4, 1))
    later = step(device=(1, 2, 3, 4, 5))
    steps = assembled(SETUP, step(), first, last, [later] * 2, END)
    assert {name: ms(values[1:]) for name, values in steps.device.items()} == {
        "h2d": [0, 1, 1],
        "forward": [2, 2, 2],
        "backward": [3, 3, 3],
        "optimizer": [4, 4, 4],
        "other": [2, 5, 5],
    }


def test_a_step_not_timed_on_the_device_has_no_device_times():
    steps = assembled(SETUP, step(), step(device=(1, 2, 3, 4, 5)), step(), END)
    assert np.isnan(steps.device["forward"]).tolist() == [True, False, True]


def test_the_devices_work_in_an_evaluation_is_not_a_steps():
    timed = step(device=(1, 2, 3, 4, 5))
    judged = evaluation(2, device=(0, 50, 0, 0, 0))
    steps = assembled(SETUP, [timed] * 5, [judged] * 20, [timed] * 5, END)
    assert ms(steps.device["forward"][1:]) == [2] * 9


@st.composite
def any_row(draw):
    kind = draw(st.sampled_from(sorted(RowKind)))
    phases = {name: draw(st.sampled_from([0, 0, 1, 7, 1000])) for name in PHASES}
    lead = draw(st.integers(0, phases["other"]))
    counters = {name: draw(st.integers(0, 2)) for name in ("forwards", "backwards", "batches")}
    flags = draw(st.sampled_from([0, 0, FLAG_PROFILED]))
    return row(kind, lead=lead, who=draw(st.integers(0, 2)), flags=flags, **phases, **counters)


@settings(max_examples=60)
@given(st.lists(any_row(), min_size=1, max_size=14))
def test_whatever_the_rows_every_nanosecond_is_accounted_for_once(rows):
    made = table(*rows)
    if made["end_ns"][0] > START:
        check(assemble_steps(made, START), made)
