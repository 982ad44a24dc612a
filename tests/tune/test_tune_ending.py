"""How trials end, from what is known of them."""

import pytest

from stepscope.launch.child import Outcome
from stepscope.measure.trial import STATUSES, Trial, TrialRequest
from stepscope.measure.trial_status import FIRST_S, TrialStatus, classify_trial, limit_s

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


@pytest.mark.parametrize(
    ("how", "said", "expected"),
    [
        (outcome(), document(), TrialStatus("ok")),
        (outcome(), document(fix("workers")), TrialStatus("ok")),
        (
            outcome(124, timed_out=True),
            document(BROKE),
            TrialStatus("timed_out", "it had not ended after 90 s"),
        ),
        (
            outcome(1),
            document(error=CUDA_ERROR, out_of_memory={"device": "cuda"}),
            TrialStatus("out_of_memory", "CUDA out of memory. Tried 2 GiB"),
        ),
        (
            outcome(137, signal=9),
            document(out_of_memory={"device": "cpu"}),
            TrialStatus("out_of_memory", "the kernel ended it: the machine's memory was full"),
        ),
        (outcome(1), document(BROKE), TrialStatus("broke", "the last reason", "amp=bf16")),
        (outcome(1), document(error=VALUE_ERROR), TrialStatus("failed", "ValueError: bad")),
        (outcome(1), document(UNFIT, error=VALUE_ERROR), TrialStatus("failed", "ValueError: bad")),
        (outcome(139, signal=11), document(), TrialStatus("failed", "ended by signal 11")),
        (outcome(3), document(), TrialStatus("failed", "exit code 3")),
        (
            outcome(),
            document(UNFIT),
            TrialStatus("not_applicable", "there is no DataLoader", "workers=4"),
        ),
        (outcome(), document(count=0, problems=["no steps"]), TrialStatus("failed", "no steps")),
        (
            outcome(),
            document(
                problems=["other", "recording stopped: disk"], stopped="recording stopped: disk"
            ),
            TrialStatus("failed", "recording stopped: disk"),
        ),
    ],
)
def test_every_end_has_a_status_and_a_line(how, said, expected):
    found = classify_trial(ASK, how, said, 30, "")
    assert found == expected
    assert found.status in STATUSES


def test_the_last_line_said_tells_why():
    assert classify_trial(ASK, outcome(1), document(), 0, "no such data").why == "no such data"
    for line in ("std::bad_alloc", "MemoryError", "torch.OutOfMemoryError: CUDA out of memory."):
        assert classify_trial(ASK, outcome(1), document(), 0, line) == TrialStatus(
            "out_of_memory", line
        )


def test_out_of_memory_that_the_program_survived_is_no_end():
    said = document(error=CUDA_ERROR, out_of_memory={"device": "cuda"})
    assert classify_trial(ASK, outcome(0), said, 30, "").status == "ok"


def test_too_few_steady_steps_are_no_speed_but_enough_to_look_at():
    few = classify_trial(ASK, outcome(), document(count=9), 4, "")
    assert few == TrialStatus("failed", "9 of 40 steps, 4 of them steady: too few to compare")
    full = classify_trial(ASK, outcome(), document(), 4, "")
    assert full.why == "40 steps, 4 of them steady: too few to compare"
    assert (
        classify_trial(TrialRequest(window=True), outcome(), document(count=9), 4, "").status
        == "ok"
    )
    assert (
        classify_trial(TrialRequest(proof=True), outcome(), document(count=9), 4, "").status == "ok"
    )


def test_a_trial_may_take_a_multiple_of_the_baseline_and_compiling_its_own_time():
    baseline = Trial(TrialRequest(), 1, "ok", steps=40, seconds=10)
    assert limit_s(TrialRequest(), None) == FIRST_S
    assert limit_s(TrialRequest(steps=40), baseline) == 60 + 50
    assert limit_s(TrialRequest(steps=80), baseline) == 60 + 100
    assert limit_s(TrialRequest(steps=4), baseline) == 60 + 50
    assert limit_s(TrialRequest(steps=40, fixes=("compile=default",)), baseline) > 900
    assert limit_s(TrialRequest(steps=40, fixes=("pin", "batch=64")), baseline) == 60 + 400
