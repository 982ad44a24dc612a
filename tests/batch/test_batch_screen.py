"""What `stepscope batch` says, and that it fits one screen."""

import io
import json

import msgspec
import pytest
from batch_world import GIB, World

from stepscope.batch.document import Batch, batch_result
from stepscope.batch.program import BatchRequest, search_program
from stepscope.launch.program import Program
from stepscope.report.render.terminal.story import print_story
from stepscope.report.story.batch import (
    batch_story,
    training_sentences,
    updates_per_epoch,
    verdict_sentence,
)
from stepscope.results.load import decode

PROGRAM = Program("train.py", ("--epochs", "3"), False)


def made(world, program=PROGRAM, **wanted):
    asked = BatchRequest(**wanted)
    searched = search_program(asked, world.run, world.look, lambda batch, got: None)
    return batch_result(searched, asked, program, "2026-01-01T00:00:00+00:00")


def screen(found):
    stream = io.StringIO()
    print_story(batch_story(found), stream)
    return stream.getvalue()


def test_the_screen_answers_first_and_fits():
    text = screen(made(World()))
    lines = text.strip().split("\n")
    answer = next(line for line in lines if line.startswith("  Batch 256: 2,4"))
    assert "1.11× the program's own 64" in answer
    assert lines.index(answer) <= 4
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "Run:  stepscope run --fix batch=256 train.py --epochs 3"


def test_own_knee_and_largest_are_marked():
    rows = {line.split()[0]: line for line in screen(made(World())).split("\n") if line.strip()}
    assert rows["64"].endswith("own")
    assert rows["256"].endswith("knee")
    assert rows["1,448"].endswith("largest")


def test_the_marks_of_a_program_that_is_at_its_knee_are_not_cut():
    found = made(World(own=256, falls_from=512))
    text = screen(found)
    assert "own, knee" in text
    assert found.command is None
    assert verdict_sentence(found).startswith("Keep the program's own batch of 256")
    assert "Smaller sizes were not tried: --min 64" in text


def test_what_did_not_fit_is_a_row():
    text = screen(made(World(own=2048)))
    row = next(line for line in text.split("\n") if line.lstrip().startswith("2,048"))
    assert row.rstrip().endswith("OOM, own")
    assert "A smaller batch changes training" in text


def test_strangers_text_cannot_reach_the_terminal():
    found = made(World(breaks_at=128), Program("a\x1b[31m.py", (), False))
    row = msgspec.structs.replace(found.curve[-1], detail="\x1b[2Jgone")
    found = msgspec.structs.replace(found, curve=(*found.curve[:-1], row))
    assert "gone" in screen(found)
    assert "\x1b" not in screen(found)


def test_the_document_is_json_and_says_what_it_is():
    found = made(World(), fixes=("amp=bf16",))
    again = json.loads(msgspec.json.encode(found))
    assert decode(again, Batch).curve == found.curve
    assert decode(again, Batch).knee == found.knee
    assert again["schema"] == "stepscope.batch/2"
    assert again["own"] == 64
    assert again["knee"]["batch"] == 256
    assert again["largest"]["batch"] == 1448
    assert again["command"] == ("stepscope run --fix batch=256 --fix amp=bf16 train.py --epochs 3")
    assert {row["batch"] for row in again["curve"]} >= {64, 128, 256, 512, 1024}


def test_a_module_is_run_as_one_and_secrets_are_masked():
    program = Program("pkg.train", ("--api-key", "hunter2"), True)
    found = made(World(), program)
    assert found.command.startswith("stepscope run --fix batch=256 -m pkg.train")
    assert b"hunter2" not in msgspec.json.encode(found)


def test_a_program_whose_sizes_all_lack_headroom_gets_no_knee():
    found = made(World(memory=8 * GIB, fixed=2 * GIB), headroom=0.2)
    assert found.knee is None
    assert found.command is None
    assert verdict_sentence(found) == "No batch size that runs leaves 20% of memory free."
    assert "Largest that fits: 64" in screen(found)


def test_an_inference_program_is_not_told_about_training():
    found = made(World(what="inference"))
    assert "changes training" not in screen(found)


def test_a_larger_batch_needs_another_learning_rate():
    words = training_sentences(64, 256, 50_000, False, [("SGD", 0.1), ("AdamW", 3e-4)])
    assert words[0] == "196 updates per epoch instead of 782."
    assert "×4 (0.1 → 0.4), after a warm-up" in words[1]
    assert "square root of the batch, ×2 (0.0003 → 0.0006)" in words[2]
    assert "divide them by 4" in words[3]


def test_a_smaller_batch_is_the_other_way_round():
    words = training_sentences(256, 64, None, False, [("SGD", None)])
    assert words[0] == "4 times more updates for the same data."
    assert "×0.25." in words[1]
    assert "multiply them by 4" in words[2]


def test_samples_that_drop_last_leaves_out_are_counted():
    words = training_sentences(10, 600, 1000, True, [])
    assert "drop_last leaves out 400 of 1,000 samples per epoch" in words[0]


@pytest.mark.parametrize(("drop_last", "updates"), [(True, 3), (False, 4)])
def test_a_short_last_batch_counts_unless_it_is_dropped(drop_last, updates):
    assert updates_per_epoch(100, 32, drop_last) == updates
