"""The commands and the sentences that a tune ends with."""

import pytest
from tune_documents import tuned

from stepscope.record.errors import UsageError
from stepscope.record.kinds import EndPart
from stepscope.record.proof import Because, Proof, ProofReason, ProofState
from stepscope.record.trial import Rejection, RejectReason
from stepscope.report.story.tune.story import tune_story
from stepscope.report.story.tune.words import proof_sentence, rejection_text
from stepscope.results.load import decode
from stepscope.tune.document import RejectedFix, Tune


def commands(final="faster", **patch):
    document = tuned()
    document["final"] |= {"verdict": final, "speedup": 3.0}
    document["patch"] |= patch
    return {one.label: one for one in tune_story(decode(document, Tune)).next}


def measured(verdict, speedup):
    return {"verdict": verdict, "speedup": speedup, "low": 0.69, "high": 1.01}


def test_a_patch_that_is_faster_is_to_be_applied():
    found = commands(**measured("faster", 2.0))
    assert found["Run"].text.startswith("stepscope run --fix workers=8 --fix pin train.py")
    assert found["Apply"].text == "git apply .stepscope/tune-1/stepscope.patch"
    assert found["Apply"].purpose == "1 edit, measured 2.00×"


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("unclear", "not shown to be faster by itself"),
        ("slower", "slower by itself"),
        ("same", "same speed by itself"),
    ],
)
def test_a_patch_that_is_not_faster_by_itself_says_so(verdict, words):
    found = commands(**measured(verdict, 0.83))
    assert found["Patch"].purpose == f"1 edit, {words}: 0.83× (0.69–1.01)"


def test_two_processes_that_leave_it_unclear_are_believed_where_they_have_the_gain():
    assert commands(**measured("unclear", 2.5))["Apply"].purpose.endswith("measured 2.50×")
    assert "Patch" in commands("unclear", **measured("unclear", 2.5))


@pytest.mark.parametrize(
    ("status", "label", "words"),
    [
        ("no_budget", "Apply", "not measured: budget exhausted"),
        ("failed", "Patch", "the program fails with it: NameError"),
    ],
)
def test_a_patch_without_a_measurement_tells_why(status, label, words):
    detail = "NameError" if status == "failed" else None
    found = commands(speedup=None, status=status, detail=detail)
    assert found[label].purpose == f"1 edit, {words}"


def test_a_command_that_fresh_trials_do_not_confirm_is_one_to_try():
    assert commands("unclear")["Run"].purpose == "not confirmed: try it"


def test_a_search_that_ran_out_of_budget_can_be_resumed():
    document = tuned(untried=["sdpa"], stopped="budget")
    resume = next(one for one in tune_story(decode(document, Tune)).next if one.label == "Resume")
    assert resume.text.startswith("stepscope tune --resume ")
    assert resume.text.endswith("--budget 1200s train.py --data /home/ann/data")


@pytest.mark.parametrize("reason", [*ProofReason])
def test_every_reason_of_a_proof_is_a_sentence(reason):
    proof = Proof(ProofState.UNCLEAR, Because(reason, step=3, value=0.5, detail="it"), steps=40)
    assert proof_sentence(proof).endswith(".")


def test_a_proof_names_what_it_compared_and_what_differs_at_the_end():
    def said(state, because=None, **more):
        return proof_sentence(Proof(state, because, steps=40, **more))

    def other(part, **more):
        because = Because(ProofReason.OTHER_ENDING, part=part, count=1, **more)
        return said(ProofState.DIFFERS, because).removeprefix("Results differ over 40 steps: ")

    ends = (EndPart.BUFFERS, EndPart.OUTPUT)
    assert said(ProofState.MATCHES, ends=ends) == "Losses, buffers and output match over 40 steps."
    unclear = Because(ProofReason.ONE_SEED)
    assert said(ProofState.UNCLEAR, unclear, ends=ends).startswith("Losses are unclear")
    assert other(EndPart.BUFFERS, detail="bn.mean", value=0.125) == "buffer bn.mean off by 12.5%."
    assert other(EndPart.OPTIMIZER, detail="0.exp_avg") == "optimizer state 0.exp_avg."
    assert other(EndPart.FILES, detail="last.pt") == "saved file last.pt."
    assert other(EndPart.OUTPUT, detail="used 0", other="used 9") == (
        "it prints “used 0”, the baseline “used 9”."
    )
    three = Because(ProofReason.OTHER_ENDING, part=EndPart.WEIGHTS, count=3, detail="fc.bias")
    assert said(ProofState.DIFFERS, three).endswith(": weight fc.bias and 2 more.")


@pytest.mark.parametrize("reason", [*RejectReason])
def test_every_reason_to_reject_a_fix_is_a_sentence(reason):
    one = RejectedFix(fix="pin", state="not_better", because=Rejection(reason, 0.5), speedup=1.01)
    assert rejection_text(one)
    assert "_" not in rejection_text(one)


def test_a_document_of_the_version_before_is_refused():
    with pytest.raises(UsageError, match="written by another version of stepscope"):
        decode(tuned(schema="stepscope.tune/1"), Tune)
