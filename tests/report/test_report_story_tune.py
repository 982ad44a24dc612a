"""The story of a tune."""

import math

import pytest
from story_reading import blocks, chart, table, whole, words
from subjects import subject
from tune_documents import rung, tune_folder, tuned

from stepscope.report.story.blocks import Chart, Code
from stepscope.report.story.tune.story import story_of_tune
from stepscope.results.load import load


def story(document=None, **more):
    return story_of_tune(subject("tune", document or tuned(**more)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ladder": [], "final": None, "command": None, "patch": None},
        {"final": None},
        {"patch": None},
        {"ladder": [rung("pin", 1.5, 1.5, proof=None)], "final": None},
        {"machine": None, "baseline": {"losses": []}},
    ],
)
def test_every_tune_gives_a_story_that_all_renderers_take(changes):
    assert whole(story(tuned(**changes)))


def test_the_verdict_is_the_claim_with_its_interval_and_the_proof():
    assert story().verdict == (
        "2.90× faster (95% CI 2.80–3.00). Losses, weights, buffers and optimizer state are"
        " identical over 100 steps."
        " 23 trials, 6 min 10 s."
    )


def test_the_ladder_begins_with_the_baseline():
    rows = table(story(), "ladder").rows
    assert [row[0] for row in rows] == ["baseline", "+ workers=8", "+ pin"]
    assert rows[2][4:6] == (1.5, 3.0)


def test_predictions_stand_beside_measurements_and_are_gaps_where_there_were_none():
    predicted, measured = chart(story(), "predicted").series
    assert (predicted.name, measured.name) == ("predicted", "measured")
    assert predicted.y[0] == 2.2
    assert math.isnan(predicted.y[1])
    assert list(measured.y) == [2.0, 1.5]


def test_without_predictions_there_is_no_chart_of_them():
    told = story(tuned(rung("pin", 1.5, 1.5)))
    assert "predicted" not in [one.id for one in blocks(told, Chart)]


def test_losses_of_the_proof_come_from_the_journal_with_the_control(tmp_path):
    told = story_of_tune(load(str(tune_folder(tmp_path / "tune-1")), tmp_path))
    base, control, variant = chart(told, "proof-losses").series
    assert [base.name, variant.name] == ["baseline", "with the fixes"]
    assert control.name.startswith("control")
    assert list(base.y) == [1.0, 0.6, 0.4]
    assert variant.y[1] == pytest.approx(0.63)
    assert (variant.low[1], variant.high[1]) == (0.62, 0.64)
    assert math.isnan(variant.y[2])


def test_losses_come_from_the_document_where_there_is_no_journal():
    assert len(chart(story(), "proof-losses").series) == 2


def test_a_damaged_journal_is_no_reason_to_fail(tmp_path):
    folder = tune_folder(tmp_path / "tune-1")
    (folder / "journal.jsonl").write_text('{"trial": {"number": 2')
    told = story_of_tune(load(str(folder), tmp_path))
    assert len(chart(told, "proof-losses").series) == 2


def test_what_was_tried_and_what_was_not_are_told_apart():
    told = story()
    assert table(told, "rejected").rows[0][:3] == ("compile", "not faster", 0.97)
    tried = next(part for part in told.sections if part.id == "rejected").blocks[0]
    assert tried.pairs == (("− compile", "slower: 0.97× (0.95–0.99)"),)
    assert "Not tried, needs a CUDA device: affinity" in words(told)


def test_the_command_and_the_patch_are_there_to_copy():
    codes = [one.text for one in blocks(story(), Code)]
    assert codes[0].startswith("stepscope run --fix workers=8")
    assert codes[1].startswith("--- a/train.py")


def test_nothing_that_helped_gives_a_whole_story():
    told = story(tuned(ladder=[], final=None, command=None, patch=None))
    assert told.verdict == ("No fix made it faster. Keep the baseline. 23 trials, 6 min 10 s.")
    assert "proof" not in [part.id for part in told.sections]


@pytest.mark.parametrize(
    ("ended", "claim"),
    [
        ({"stopped": "interrupted", "untried": ["sdpa"]}, "Interrupted before any fix was tried."),
        ({"stopped": "budget", "untried": ["sdpa"]}, "The budget is too small to try a fix."),
        ({}, "There is no fix to try. Keep the baseline."),
    ],
)
def test_where_nothing_was_tried_nothing_is_said_of_what_helps(ended, claim):
    told = story(tuned(ladder=[], rejected=[], final=None, command=None, patch=None, **ended))
    assert told.verdict.startswith(claim)


def test_fixes_that_are_left_are_not_said_not_to_help():
    left = tuned(ladder=[], final=None, command=None, patch=None, stopped="budget", untried=["a"])
    assert story(left).verdict.startswith("None of the fixes tried so far made it faster.")


def rejected(reason, state, **more):
    return {"fix": "sdpa", "because": {"reason": reason, **more}, "state": state, "speedup": 1.1}


def test_fixes_that_did_not_run_are_not_said_not_to_help():
    none = {"ladder": [], "final": None, "command": None, "patch": None}
    failed = rejected("trial_failed", "not_applicable", status="not_applicable", detail="no view")
    told = story(tuned(rejected=[failed], **none))
    assert told.verdict.startswith("No fix works in this program.")
    open_ = rejected("unsettled", "unsettled", trials=2)
    told = story(tuned(rejected=[open_], stopped="budget", **none))
    assert told.verdict.startswith("Undecided: a fix looked faster")


def test_a_candidate_that_was_ended_early_says_after_how_much():
    slow = rejected("far_slower", "not_better", detail=0.25) | {"speedup": 0.31}
    told = story(tuned(rejected=[slow]))
    (section,) = (part for part in told.sections if part.id == "rejected")
    pairs = section.blocks[0].pairs
    assert pairs == (("− sdpa", "far slower: 0.31×, ended after 25% of a trial"),)


def test_without_a_baseline_there_is_no_empty_table():
    nothing = {"ladder": [], "rejected": [], "final": None, "command": None, "patch": None}
    told = story(tuned(baseline={}, stopped="budget", untried=["sdpa"], **nothing))
    assert "ladder" not in [part.id for part in told.sections]


def test_many_fixes_for_another_device_are_counted_not_named():
    device = {"reason": "needs_device", "detail": "cuda"}
    many = [{"fix": f"f{n}", "because": device, "state": "left_out"} for n in range(5)]
    told = story(tuned(rejected=many))
    assert "needs a CUDA device: 5 fixes" in words(told)
    assert next(part for part in told.sections if part.id == "rejected").title == "Not tried"


def test_the_search_s_numbers_are_told_apart_from_the_headline():
    assert "As measured while searching; the speedup above is from 3 + 3 fresh trials." in words(
        story()
    )


@pytest.mark.parametrize(
    ("seconds", "words_"),
    [
        (590.0, "Budget spent. Not tried: sdpa."),
        (370.0, "3 min 50 s of the budget left. Not tried, too long for that: sdpa."),
    ],
)
def test_a_budget_is_exhausted_only_where_it_was_used(seconds, words_):
    left = tuned(seconds=seconds, stopped="budget", untried=["sdpa"])
    left["request"]["budget_s"] = 600.0
    assert words_ in words(story(left))


def test_an_end_before_the_end_is_said():
    told = story(stopped="interrupted", untried=["sdpa"])
    assert "Interrupted; this is the best so far. Not tried: sdpa." in words(told)


def test_resources_of_which_nothing_is_known_have_no_column():
    names = [column.name for column in table(story(), "resources").columns]
    assert names == ["rung", "GPU busy", "peak memory", "energy"]


def test_what_was_tried_in_place_is_told_beside_the_ladder():
    held = {"ratio": 1.3, "low": 1.2, "high": 1.4, "steps": 128, "seconds": 2.5}
    contests = [
        {"candidate": ["amp=bf16", "channels_last"], "in_place": True, **held},
        {"candidate": ["workers=4"], "in_place": False, **held},
        {"candidate": ["sdpa"], "in_place": True, **held},
        {"candidate": ["sdpa"], "in_place": True, **held},
    ]
    told = story(tuned(contests=contests))
    said = "Tried in place, between steps of one process: amp=bf16 + channels_last, sdpa."
    assert said in words(told)
    rows = table(told, "contests").rows
    assert [row[:2] for row in rows[:2]] == [
        ("amp=bf16 + channels_last", "in place"),
        ("workers=4", "by trials"),
    ]
    assert "Tried in place" not in words(story())


def test_a_rung_without_trials_of_its_own_has_gaps():
    none = dict.fromkeys(("step_ms", "samples_per_s", "peak_memory_bytes", "gpu_busy"))
    told = story(tuned(rung("sdpa", 1.2, 1.2, trials=[], losses=[], **none), rung("pin", 1.5, 1.8)))
    assert whole(told)
    assert table(told, "ladder").rows[1][2:4] == (None, None)


def test_a_gain_in_place_that_no_trial_could_confirm_says_so():
    open_ = rejected("unsettled", "unsettled")
    told = story(tuned(rejected=[open_]))
    (section,) = (part for part in told.sections if part.id == "rejected")
    assert section.blocks[0].pairs == (("− sdpa", "1.10× in place, then the budget ended"),)
