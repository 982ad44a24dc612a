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
    assert found["Apply"].purpose == "1 edit, measured: only 2.00× (0.69–1.01)"


def test_a_patch_as_fast_as_the_headline_gives_no_second_number():
    found = commands(verdict="faster", speedup=2.8, low=2.5, high=3.1)
    assert found["Apply"].purpose == "1 edit, measured: as fast"


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
    shown = {"verdict": "unclear", "speedup": 2.5, "low": 0.9, "high": 6.9}
    assert commands(**shown)["Apply"].purpose.endswith("measured: as fast")
    assert "Patch" in commands("unclear", **measured("unclear", 2.5))


@pytest.mark.parametrize(
    ("status", "label", "words"),
    [
        ("no_budget", "Apply", "not measured: too little budget left"),
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


def unclear(settle, **more):
    proof = {"state": "unclear", "because": {"reason": "uncertain_trend", "value": 0.08},
             "steps": 100, "seeds": 3, "settle": settle, **more}  # fmt: skip
    document = tuned()
    document["final"]["proof"] = proof
    return tune_story(decode(document, Tune))


def remarks(story):
    (section,) = (one for one in story.sections if one.id == "remarks")
    return [block.text for block in section.blocks]


def test_an_unclear_proof_says_what_would_settle_it_and_how_to_go_on():
    told = unclear({"seeds": 9, "steps": 100, "trials": 18, "seconds": 240.0})
    assert remarks(told)[0] == (
        "9 seeds of 100 steps should settle it: 18 more trials, about 4 min 00 s."
    )
    (prove,) = (one for one in told.next if one.label == "Prove")
    assert prove.text.startswith("stepscope tune --resume ")
    assert prove.text.endswith(" --prove --budget 360s train.py --data /home/ann/data")


def test_a_proof_the_budget_ended_says_that_it_was_too_little():
    settle = {"seeds": 9, "steps": 100, "trials": 18, "seconds": 240.0}
    told = unclear(settle, budget_exhausted=True)
    assert remarks(told)[0].endswith("about 4 min 00 s, more than the budget had left.")


def test_an_undecidable_proof_says_so_with_its_numbers_and_offers_nothing():
    told = unclear({"seeds": None, "steps": 100})
    assert remarks(told)[0] == (
        "Undecidable: 3 seeds over 100 steps vary so much that 40 would not settle it."
    )
    assert "Prove" not in {one.label for one in told.next}
    flat = unclear({"seeds": None, "steps": 100}, because={"reason": "no_trend"})
    assert remarks(flat)[0] == (
        "Undecidable: over 100 steps losses fall too little to compare their rates."
    )
    assert remarks(unclear(None))[0] == "More trials would not settle it."


def test_an_interrupted_tune_can_be_resumed_even_if_nothing_is_left_to_try():
    document = tuned(untried=[], stopped="interrupted")
    resume = next(one for one in tune_story(decode(document, Tune)).next if one.label == "Resume")
    assert resume.text.endswith("--budget 600s train.py --data /home/ann/data")


@pytest.mark.parametrize(
    ("failure", "why"), [("no_budget", "the budget ended first"), ("interrupted", "interrupted")]
)
def test_without_fresh_trials_no_speedup_is_claimed(failure, why):
    document = tuned()
    document["final"] |= dict.fromkeys(("speedup", "low", "high", "verdict"))
    document["final"] |= {"failure": failure, "confirmed": False}
    claim = tune_story(decode(document, Tune)).verdict
    assert claim.startswith(f"Not confirmed on fresh trials: {why}. Losses")


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
