"""What the tune's screen says of the command and the patch it hands over."""

import pytest

from stepscope.report.story.tune.words import next_step_lines

EDIT = {"fix": "amp", "file": "train.py", "line": 4, "words": "call the model under autocast"}


def said(final="faster", **patch):
    patch = {"path": "tune/stepscope.patch", "edits": [EDIT], "by_hand": []} | patch
    document = {
        "command": "stepscope run --fix amp train.py",
        "final": {"verdict": final, "speedup": 3.0},
        "patch": patch,
        "run": {"folder": "tune"},
    }
    run, kept, *_ = next_step_lines(document)
    return run, kept


def measured(verdict, speedup):
    return {"verdict": verdict, "speedup": speedup, "low": 0.69, "high": 1.01}


def test_a_patch_that_is_faster_is_to_be_applied():
    run, kept = said(**measured("faster", 2.0))
    assert run == "Run it so:   stepscope run --fix amp train.py"
    patch = "git apply tune/stepscope.patch"
    assert kept == f"Keep it so:  {patch}    (1 edit in train.py, checked: 2.00×)"


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("unclear", "not shown to be faster"),
        ("slower", "slower"),
        ("same", "the same speed"),
    ],
)
def test_a_patch_that_is_not_faster_by_itself_says_so(verdict, words):
    _, kept = said(**measured(verdict, 0.83))
    assert kept == (
        "As a patch:  tune/stepscope.patch    "
        f"(1 edit in train.py, by itself {words}: 0.83×, 0.69–1.01)"
    )


def test_two_processes_that_leave_it_unclear_are_believed_where_they_have_the_gain():
    _, kept = said(**measured("unclear", 2.5))
    assert kept.startswith("Keep it so:")
    assert kept.endswith("checked: 2.50×)")
    _, tried = said("unclear", **measured("unclear", 2.5))
    assert tried.startswith("As a patch:")


@pytest.mark.parametrize(
    ("why", "label"),
    [("not measured: the budget was spent", "Keep it so:"), ("it fails: NameError", "As a patch:")],
)
def test_a_patch_without_a_measurement_tells_why(why, label):
    _, kept = said(speedup=None, why=why)
    assert kept.startswith(label)
    assert kept.endswith(f"(1 edit in train.py, {why})")


def test_a_command_that_fresh_trials_do_not_confirm_is_one_to_try():
    run, _ = said("unclear", **measured("unclear", 0.83))
    assert run == "To try it:   stepscope run --fix amp train.py"
