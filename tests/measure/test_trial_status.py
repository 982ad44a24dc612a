"""How a trial ended, from its outcome and records."""

import pytest

from stepscope.launch.child import Outcome
from stepscope.measure.trial.record import Trial, TrialRequest
from stepscope.measure.trial.status import FIRST_S, TrialEnd, classify_trial, limit_s
from stepscope.record.fix import (
    EPOCH_TOO_SMALL,
    LOADER,
    OUT_OF_MEMORY,
    Broke,
    FixOutcome,
    FixState,
    NotApplied,
    Reason,
)
from stepscope.record.fix_words import outcome_json
from stepscope.record.trial import TrialReason, TrialStatus

ASK = TrialRequest(fixes=("workers=4", "amp=bf16"), steps=40)


def outcome(exit_code=0, signal=None, timed_out=False):
    return Outcome(exit_code, signal, timed_out, 0, 90_000_000_000, 1)


def fix(name, state="applied", *reasons):
    return {"name": name, "state": state, "reasons": list(reasons), "where": []}


def document(*fixes, error=None, out_of_memory=None, count=40, problems=(), stopped=None):
    return {
        "run": {"error": error, "out_of_memory": out_of_memory, "recording_stopped": stopped},
        "fixes": list(fixes),
        "steps": {"count": count},
        "problems": list(problems),
    }


CUDA_ERROR = {"type": "OutOfMemoryError", "text": "CUDA out of memory. Tried 2 GiB\nlong advice"}
VALUE_ERROR = {"type": "ValueError", "text": "bad\nworse"}
BROKE = fix("amp", "broke", "one reason", "the last reason")
UNFIT = fix("workers", "not applicable", "there is no DataLoader")


OK, FAILED, MEMORY = TrialStatus.OK, TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("how", "said", "expected"),
    [
        (outcome(), document(), TrialEnd(OK)),
        (outcome(), document(fix("workers")), TrialEnd(OK)),
        (
            outcome(124, timed_out=True),
            document(BROKE),
            TrialEnd(TrialStatus.TIMED_OUT, TrialReason.HUNG),
        ),
        (
            outcome(1),
            document(error=CUDA_ERROR, out_of_memory={"device": "cuda"}),
            TrialEnd(MEMORY, TrialReason.ALLOCATION_FAILED, "CUDA out of memory. Tried 2 GiB"),
        ),
        (
            outcome(137, signal=9),
            document(out_of_memory={"device": "cpu"}),
            TrialEnd(MEMORY, TrialReason.HOST_MEMORY_FULL),
        ),
        (
            outcome(1),
            document(BROKE),
            TrialEnd(TrialStatus.BROKE, TrialReason.FIX_BROKE, "the last reason", "amp=bf16"),
        ),
        (
            outcome(1),
            document(error=VALUE_ERROR),
            TrialEnd(FAILED, TrialReason.PROGRAM_FAILED, "ValueError: bad", code=1),
        ),
        (
            outcome(1),
            document(UNFIT, error=VALUE_ERROR),
            TrialEnd(FAILED, TrialReason.PROGRAM_FAILED, "ValueError: bad", code=1),
        ),
        (outcome(139, signal=11), document(), TrialEnd(FAILED, TrialReason.KILLED, code=11)),
        (outcome(3), document(), TrialEnd(FAILED, TrialReason.PROGRAM_FAILED, code=3)),
        (
            outcome(),
            document(UNFIT),
            TrialEnd(
                TrialStatus.NOT_APPLICABLE,
                TrialReason.FIX_NOT_APPLIED,
                "there is no DataLoader",
                "workers=4",
            ),
        ),
        (
            outcome(),
            document(count=0, problems=["no steps"]),
            TrialEnd(FAILED, TrialReason.NO_STEPS, "no steps"),
        ),
        (
            outcome(),
            document(
                problems=["other", "recording stopped: disk"], stopped="recording stopped: disk"
            ),
            TrialEnd(FAILED, TrialReason.OBSERVING_STOPPED, "recording stopped: disk"),
        ),
    ],
)
def test_every_end_has_a_status_and_a_reason(how, said, expected):
    found = classify_trial(ASK, how, said, 30, "")
    assert found == expected
    trial = Trial(ASK, 1, **found._asdict())
    assert trial.ok or trial.failure


@pytest.mark.parametrize(
    ("reason", "expected"),
    [(OUT_OF_MEMORY, MEMORY), (Reason("needs_contiguous"), TrialStatus.BROKE)],
)
def test_a_batch_too_large_for_memory_is_out_of_memory_though_the_fix_says_so(reason, expected):
    stopped = FixOutcome("amp", "bf16", FixState.BROKE, broke=Broke(reason))
    broke = outcome_json(stopped)
    assert classify_trial(ASK, outcome(1), document(broke), 0, "").status is expected


def test_an_epoch_smaller_than_the_batch_is_told_from_other_refusals():
    small = NotApplied(EPOCH_TOO_SMALL, LOADER, value=20)
    refused = FixOutcome("workers", 4, FixState.NOT_APPLICABLE, not_applied=(small,))
    found = classify_trial(ASK, outcome(), document(outcome_json(refused)), 0, "")
    assert found.reason is TrialReason.EPOCH_TOO_SMALL


def test_the_last_line_of_output_tells_why():
    assert classify_trial(ASK, outcome(1), document(), 0, "no such data").detail == "no such data"
    for line in ("std::bad_alloc", "MemoryError", "torch.OutOfMemoryError: CUDA out of memory."):
        found = classify_trial(ASK, outcome(1), document(), 0, line)
        assert found == TrialEnd(MEMORY, TrialReason.ALLOCATION_FAILED, line)


def test_out_of_memory_that_the_program_survived_is_no_end():
    said = document(error=CUDA_ERROR, out_of_memory={"device": "cuda"})
    assert classify_trial(ASK, outcome(0), said, 30, "").status is OK


def test_too_few_steady_steps_are_no_speed_but_enough_to_look_at():
    few = classify_trial(ASK, outcome(), document(count=9), 4, "")
    assert few == TrialEnd(FAILED, TrialReason.TOO_FEW_STEADY)
    trial = Trial(ASK, 1, **few._asdict(), steps=9, steady=4)
    assert trial.failure == "9 of 40 steps, 4 of them steady: too few to compare"
    for request in (TrialRequest(window=True), TrialRequest(proof=True)):
        assert classify_trial(request, outcome(), document(count=9), 4, "").status is OK


def test_a_trial_may_take_a_multiple_of_the_baseline_and_compiling_its_own_time():
    baseline = Trial(TrialRequest(), 1, TrialStatus.OK, steps=40, seconds=10)
    assert limit_s(TrialRequest(), None) == FIRST_S
    assert limit_s(TrialRequest(steps=40), baseline) == 60 + 50
    assert limit_s(TrialRequest(steps=80), baseline) == 60 + 100
    assert limit_s(TrialRequest(steps=4), baseline) == 60 + 50
    assert limit_s(TrialRequest(steps=40, fixes=("compile=default",)), baseline) > 900
    assert limit_s(TrialRequest(steps=40, fixes=("pin", "batch=64")), baseline) == 60 + 400
