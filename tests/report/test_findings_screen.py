"""Findings on the screens of `run`, `show` and `analyze`."""

import copy
import io
import re
import unicodedata

import pytest
from diagnosing import case, finding
from msgspec import to_builtins
from msgspec.structs import replace
from subjects import of_document
from test_terminal import CPU, GPU, HOSTILE, fits

from stepscope.diagnose.headroom import headroom
from stepscope.diagnose.key_questions import answer_questions
from stepscope.record.finding import Diagnosis, Evidence, FixRef, Place, SourceEdit
from stepscope.report.render.terminal.story import print_story
from stepscope.report.story.run.story import run_screen, story_of_run

LOADER = finding(
    "data.loader_bound", 17.0, now=63.1,
    title="The GPU waits for the data loader",
    why="DataLoader at train.py:31 has num_workers=0; Resize is 61% of a sample.",
    advice="Give the DataLoader workers.",
    fix=FixRef("workers", "12"), where=(Place("train.py", 31),), effort="one argument",
    evidence=(Evidence("data wait", 48.9, "ms"), Evidence("kept", float(3 << 30), "bytes")),
    edit=SourceEdit(
        "train.py", 31, "    loader = DataLoader(data)",
        ("    loader = DataLoader(data, num_workers=12)",), "pass num_workers=12 to the DataLoader",
    ),
    also=(FixRef("persistent"),),
)  # fmt: skip
ITEM = finding(
    "sync.item", 58.9, now=63.1, title="Every step stops to read the loss",
    why="The host waits for the device before it goes on.", advice="Read it every 100 steps.",
    where=(Place("train.py", 58), Place("train.py", 60)),
)  # fmt: skip
SAVING = finding(
    "run.saving", title="Saving takes a third of the run", scope="run", share=0.33,
    kind="none", advice="Save less often.",
)  # fmt: skip


def document(*findings, minor=(), healthy=(), base=CPU, now=63.1, **more):
    one = case(now)
    could = headroom(findings, one)
    answers = answer_questions(one, findings, could)
    found = Diagnosis([*findings], [*minor], [*healthy], could, answers)
    return copy.deepcopy(base) | to_builtins(found) | more


def shown(document, everything=False):
    stream = io.StringIO()
    result = of_document("run", "run", document)
    story = story_of_run(result) if everything else run_screen(result)
    print_story(story, stream, detail=everything)
    return stream.getvalue()


def test_the_top_says_what_the_step_could_take():
    text = shown(document(LOADER, ITEM))
    assert "Why it's slow — up to 4.9× faster with 2 fixes (12.8 ms per step)" in text
    assert re.search(
        r"^ 1  The GPU waits for the data loader +−46\.1 ms  exact$", text, re.MULTILINE
    )
    assert re.search(
        r"^ 2  Every step stops to read the loss +−4\.20 ms  exact$", text, re.MULTILINE
    )


def test_the_users_line_is_shown_as_it_would_be():
    assert "    fix: loader = DataLoader(data, num_workers=12)\n" in shown(document(LOADER))


def test_a_line_too_long_for_the_screen_gives_way_to_advice():
    edit = replace(LOADER.edit, after=(f"loader = DataLoader({'x' * 80})",))
    long = replace(LOADER, edit=edit)
    assert "    fix: Give the DataLoader workers.\n" in shown(document(long))


def test_without_a_known_line_there_is_advice():
    assert "    fix: Read it every 100 steps.\n" in shown(document(ITEM))


def test_places_stand_before_the_sentence():
    assert "    train.py:58, :60  The host waits" in shown(document(LOADER, ITEM))


def test_a_finding_about_the_run_says_its_share():
    text = shown(document(SAVING))
    assert re.search(r"Saving takes a third of the run +33% of the run\s*$", text, re.MULTILINE)
    assert "Why it's slow\n" in text, "no step time is promised"


def test_five_are_shown_and_the_rest_is_a_command_away():
    many = [finding(f"g{n}.x", 60.0 - n, now=63.1, title=f"Cause {n}") for n in range(7)]
    text = shown(document(*many))
    assert "Cause 4" in text
    assert "Cause 5" not in text
    assert "2 more findings: stepscope show 1115-0538-abc --all" in text
    assert "Cause 6" in shown(document(*many), everything=True)


def test_the_next_command_applies_what_goes_together():
    text = shown(document(LOADER, ITEM))
    assert re.search(r"Next:  stepscope tune train\.py --epochs 3 +measure and prove these\n", text)
    assert "       stepscope run --fix workers=12 train.py --epochs 3    apply 1 of 2 now\n" in text
    alone = shown(document(LOADER))
    assert "       stepscope run --fix workers=12 train.py --epochs 3    apply them now\n" in alone


def test_masked_arguments_are_not_repeated():
    given = document(LOADER)
    given["run"]["argv"] = ["--token", "***"]
    assert "       stepscope run --fix workers=12 …  " in shown(given)


def test_an_argument_wider_than_the_screen_is_left_out():
    given = document(LOADER)
    given["run"]["argv"] = ["--name", "x" * 70]
    text = shown(given)
    assert "       stepscope run --fix workers=12 train.py …\n" in text
    assert fits(text)


def test_arguments_are_quoted_for_the_shell():
    given = document(LOADER)
    given["run"]["argv"] = ["--name", "two words"]
    assert "train.py --name 'two words'" in shown(given)


def test_findings_take_the_place_of_the_time_sinks():
    text = shown(document(LOADER))
    assert "Where a step's time goes" not in text
    assert "Whole run, 28 s: training 92%, imports 7%" in text


def test_all_adds_predictions_edits_and_what_is_fine():
    fine = finding("healthy.fine", title="Fine: optimizer", why="It takes 0.1 ms.", share=0.0)
    small = finding("data.small", 62.9, now=63.1, title="A small thing", why="It is small.")
    text = shown(document(LOADER, minor=[small], healthy=[fine]), everything=True)
    assert "predicted 3.71× (3.44–4.08)" in text
    assert "    - loader = DataLoader(data)\n" in text
    assert "    + loader = DataLoader(data, num_workers=12)\n" in text
    assert "stepscope run --fix workers=12 --fix persistent train.py --epochs 3" in text
    assert "data wait 48.9 ms · kept 3.0 GiB" in text
    assert "one argument, high confidence" in text
    assert re.search(r"A small thing +It is small\.", text)
    assert re.search(r"Fine: optimizer +It takes 0\.1 ms\.", text)
    assert "How much of a step waits for data?" in text
    assert "Where a step's time goes" in text
    assert text.count("no GPU used") == 1
    assert fits(text)


def test_nothing_found_is_said_and_the_time_is_still_accounted_for():
    text = shown(document())
    assert "No bottleneck found" in text
    assert "Where a step's time goes" in text


def test_a_document_that_was_not_diagnosed_claims_nothing():
    assert "bottleneck" not in shown(copy.deepcopy(CPU))


def test_a_full_screen_fits_80_columns_and_45_lines():
    title = "A title that is as long as a title may ever be, sixty chars."
    long = [
        finding(
            f"g{n}.x", 60.0 - n, now=63.1, title=title, why="Some reason that needs words. " * 9,
            advice="Some advice that needs many words. " * 9, kind="semantic",
            where=(Place("/very/long/path/to/some/where/train_the_model.py", 1234),),
        )
        for n in range(7)
    ]  # fmt: skip
    given = document(*long, base=CPU | {"gpu": GPU})
    assert fits(shown(given))
    assert len(shown(given).splitlines()) <= 45
    assert fits(shown(given, everything=True))


def test_strangers_words_cannot_touch_the_screen():
    evil = f"x{HOSTILE}y"
    bad = finding(
        "data.bad", 20.0, now=63.1, title=evil, why=evil, advice=evil,
        where=(Place(evil, 3),), fix=FixRef("workers", evil),
        evidence=(Evidence(evil, evil, evil),),
        edit=SourceEdit(evil, 3, evil, (evil,), evil),
        also=(FixRef(evil),),
    )  # fmt: skip
    given = document(bad, minor=[bad], healthy=[bad])
    given["run"]["argv"] = [evil]
    for everything in (False, True):
        text = shown(given, everything)
        assert not any(unicodedata.category(char) == "Cc" and char != "\n" for char in text)
        assert "\u202e" not in text


@pytest.mark.parametrize("everything", [False, True])
def test_a_trace_has_its_findings_too(everything):
    from recordings import recorded

    from stepscope.analyze.run.document import to_json
    from stepscope.analyze.timeline.document import trace_analysis
    from stepscope.report.story.trace.story import story_of_trace, trace_screen

    given = to_json(trace_analysis(recorded("resnet18_b32_h200")))
    one = finding("launch.x", 9.0, now=given["steps"]["mean_ms"], title="Short kernels")
    given |= to_builtins(Diagnosis([one])) | {"problems": ["a rule failed"]}
    stream = io.StringIO()
    result = of_document("trace", "trace", given)
    story = story_of_trace(result) if everything else trace_screen(result)
    print_story(story, stream, detail=everything)
    text = stream.getvalue()
    assert re.search(r"1  Short kernels +−8\.1\d ms", text)
    assert ("Data quality" in text) == everything
    assert "a rule failed" in text.lower()
    assert fits(text)
