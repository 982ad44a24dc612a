"""Epoch ends, evaluations and saves between steps, on handmade rows."""

from rowmaking import END, SETUP, START, epoch, evaluation, row, step, table

from stepscope.analyze.run.steps import assemble_steps
from stepscope.measure.trial.folder import training_events
from stepscope.measure.trial.record import ProofRecord
from stepscope.record.row_log import RowKind


def found(*rows):
    made = table(*rows)
    return training_events(made, assemble_steps(made, START))


def test_each_is_told_by_the_step_after_which_it_came():
    saved = row(RowKind.SAVE, save=5)
    one = [*[step()] * 3, step(samples=2)]
    rows = [one, saved, epoch(1), evaluation(), evaluation(), epoch(1), one, epoch(1), one]
    assert found(SETUP, *rows, END) == ProofRecord(
        epochs=(4, 8), evaluations=(4,), saves=(4,), short_batches=(4, 8, 12)
    )


def test_what_no_step_followed_proves_nothing():
    told = found(SETUP, [step()] * 4, evaluation(), row(RowKind.SAVE, save=5), END)
    assert told.evaluations == ()
    assert told.saves == ()


def test_an_inference_program_evaluates_nothing():
    calls = [row(RowKind.EVAL, forward=3, forwards=1, inputs=4) for _ in range(6)]
    assert found(SETUP, *calls, END).evaluations == ()


def test_a_run_without_steps_has_no_occasions():
    assert found(SETUP, END) == ProofRecord()
    assert found() == ProofRecord()
