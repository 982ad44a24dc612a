"""The screens of `stepscope analyze`."""

import io

import pytest
from recordings import recorded
from subjects import of_document

from stepscope.analyze.run.document import to_json
from stepscope.analyze.timeline.document import analyze_ranks, trace_analysis
from stepscope.report.render.terminal.story import print_story
from stepscope.report.story.trace.story import story_of_ranks, trace_screen


def shown(name, change=None):
    document = to_json(trace_analysis(recorded(name.removesuffix(".json.gz"))))
    if change is not None:
        change(document)
    stream = io.StringIO()
    print_story(trace_screen(of_document("trace", name, document)), stream)
    return stream.getvalue()


def test_the_answer_comes_first_and_the_next_command_last():
    lines = shown("resnet18_b32_h200.json.gz").strip().splitlines()
    assert lines[0].startswith("stepscope")
    assert "8 steps" in lines[0]
    assert "17.1 ms per step   GPU busy 9%" in lines[3]
    assert any(line.startswith("Next:  stepscope report") for line in lines[-5:])


def test_idle_time_is_explained_with_its_place():
    screen = shown("resnet18_b32_h200.json.gz")
    assert "the host launches too slowly" in screen
    assert "traces.py(22): step" in screen


@pytest.mark.parametrize(
    "name",
    [
        "a100_nccl_rank0",
        "vllm_decode_cuda_graphs",
        "cpu_only_rank34.pt.trace",
        "large_integers_rank70.pt.trace",
    ],
)
def test_every_line_fits_the_screen(name):
    assert max(map(len, shown(f"{name}.json.gz").splitlines())) <= 80


def test_a_recording_without_a_device_says_so():
    assert "No device in this recording" in shown("cpu_only_rank34.pt.trace.json.gz")


def test_kernels_are_shown_where_no_operator_accounts_for_them():
    screen = shown("vllm_decode_cuda_graphs.json.gz")
    assert "ran in CUDA graphs" in screen
    assert "kernel_unified_attention_3d" in screen


def test_what_a_stranger_wrote_cannot_move_the_cursor():
    def poison(document):
        document["operators"][0]["name"] = "evil\x1b[2J\r\nname"
        document["source"]["file"] = "trace\x1b]0;x\x07.json"

    screen = shown("resnet18_b32_h200.json.gz", poison)
    assert "\x1b" not in screen
    assert "\r" not in screen


def test_what_was_left_out_is_said():
    def damage(document):
        document["quality"]["dropped"] = {"without a time": 3}
        document["quality"]["notes"] = ["The file ends in the middle of an event."]

    screen = shown("resnet18_b32_h200.json.gz", damage)
    assert "3 without a time" in screen
    assert "The file ends in the middle of an event." in screen


def test_ranks_have_a_row_each():
    timeline = recorded("a100_nccl_rank0")
    stream = io.StringIO()
    found = to_json(analyze_ranks([timeline, timeline]))
    print_story(story_of_ranks(of_document("ranks", "ranks", found)), stream)
    screen = stream.getvalue()
    assert "2 ranks of 2" in screen
    assert screen.count("23.6%") >= 2
    assert max(map(len, screen.splitlines())) <= 80
