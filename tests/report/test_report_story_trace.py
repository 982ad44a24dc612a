"""What a report says of traces that any profiler recorded."""

import math
from itertools import pairwise

import pytest
from story_reading import (
    TRACES,
    blocks,
    chart,
    column,
    section,
    table,
    trace_subject,
    whole,
    words,
    written_trace,
)

from stepscope.record.errors import UsageError
from stepscope.report.story.blocks import Card, Chart, Missing, Table, TimelineView
from stepscope.report.story.summary import bottleneck
from stepscope.report.story.trace.story import story_of_trace
from stepscope.results.load import REPORTED, load

NAMES = sorted(path.name.removesuffix(".json.gz") for path in TRACES.glob("*.json.gz"))
MARKUP = "</script><script>alert(1)</script>"
HOSTILE = (
    MARKUP,
    "=cmd|' /C calc'!A0",
    "\x1b[2J\x00",
    "kernel<<<",
    "a>b",
    "\\input{x}|`y`",
    "x" * 9000,
)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """Ceilings measured on this machine are not those of the recorded devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def story(own_cache):
    return story_of_trace(trace_subject("resnet18_b32_h200"))


@pytest.mark.parametrize("name", NAMES)
def test_every_trace_has_a_whole_story(name):
    told = story_of_trace(trace_subject(name))
    assert whole(told)
    assert told.kind == "trace"
    assert told.verdict.endswith(".")
    assert len(blocks(told, TimelineView)) == 1


def test_a_trace_tells_nothing_of_the_run_around_it(story):
    ids = {part.id for part in story.sections}
    assert not ids & {"run", "data", "machine", "losses"}


def test_the_gpus_time_adds_up_to_the_step(story):
    document = trace_subject("resnet18_b32_h200").document
    drawn = sum(series.y[0] for series in chart(story, "breakdown").series)
    steps = document["steps"]["count"]
    assert drawn == pytest.approx(document["breakdown_ns"]["wall"] / steps / 1e6)


def test_all_kernels_are_in_the_table_with_their_operators(story):
    document = trace_subject("resnet18_b32_h200").document
    kernels = table(story, "kernels")
    assert column(kernels, "kernel") == [one["name"] for one in document["kernels"]]
    assert sum(column(kernels, "share")) == pytest.approx(1.0)
    known = [name for name in column(kernels, "operator") if name]
    assert len(known) > 0.9 * len(kernels.rows)
    assert set(column(kernels, "bound by")) & {"compute", "memory", "launch"}


def test_tiles_of_a_category_add_up_to_it(story):
    tiles = chart(story, "kernel-tiles").series[0]
    rows = list(zip(tiles.x, tiles.parents, tiles.y, strict=True))
    for name, parent, value in rows:
        if not parent:
            inside = math.fsum(y for _, above, y in rows if above == name)
            assert inside == pytest.approx(value)


def test_no_point_of_the_roofline_lies_far_above_its_ceiling(story):
    found = chart(story, "roofline")
    lines = [series for series in found.series if series.line]
    points = [series for series in found.series if not series.line]
    top = max(max(line.y) for line in lines)
    assert found.x.log
    assert found.y.log
    assert all(0 < y <= top for series in points for y in series.y)
    for line in lines:
        assert all(before <= after for before, after in pairwise(line.y))
        assert all(before < after for before, after in pairwise(line.x))


def test_ten_operators_at_most_are_called_the_heaviest(story):
    found = table(story, "operators")
    assert 0 < len(found.rows) <= 10
    assert column(found, "device") == sorted(column(found, "device"), reverse=True)


def test_a_card_of_a_trace_has_no_program_to_name():
    told = story_of_trace(trace_subject("gpt_b4x1024_bf16_h200"))
    cards = blocks(told, Card)
    assert cards
    assert all(card.command.endswith(" PROGRAM") for card in cards if card.command)
    assert all(card.excerpt is None for card in cards)
    assert any(card.at_ns is not None for card in cards)


def test_without_a_device_the_host_is_told_of():
    told = story_of_trace(trace_subject("cpu_only_rank34.pt.trace"))
    assert any("No device" in one.what for one in blocks(told, Missing, "step"))
    assert "ProfilerActivity.CUDA" in words(told)
    assert section(told, "kernels").title == "Operators"


def test_a_rank_tells_of_its_communication_and_of_the_others():
    told = story_of_trace(trace_subject("v100_train_2ranks_rank1"))
    assert "This is rank 1 of 2." in words(told)
    assert table(told, "collectives").rows
    assert "stepscope analyze FOLDER" in words(told)


def test_what_was_not_recorded_is_said_with_how_to_record_it():
    told = story_of_trace(trace_subject("vllm_decode_cuda_graphs"))
    assert "profile_memory=True" in words(told)
    assert "This device's ceilings were not measured." in words(told)
    assert "CUDA graphs" in words(told)


def test_a_folder_of_traces_is_refused_in_one_line():
    with pytest.raises(UsageError, match="holds traces of several ranks: name one"):
        load(TRACES, TRACES, REPORTED)


def test_headroom_that_rests_on_other_findings_is_a_sentence_of_its_own():
    document = trace_subject("gpt_b4x1024_bf16_h200").document
    headroom = document["headroom"] | {"by": []}
    told = bottleneck(document | {"headroom": headroom})
    assert told.startswith(f"{document['findings'][0]['title']}. Up to ")


def hostile_events():
    """A step whose every name is a stranger's idea of a joke."""
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 1,
         "ts": 10_000 * n, "dur": 9_000}
        for n in (1, 2)
    ]  # fmt: skip
    for number, name in enumerate(HOSTILE):
        for step in (1, 2):
            at, identity = 10_000 * step + 1_000 * number, 100 * step + number
            events += [
                {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at,
                 "dur": 500, "args": {"External id": identity}},
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
                 "ts": at + 10, "dur": 5,
                 "args": {"correlation": identity, "External id": identity}},
                {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at + 50,
                 "dur": 300, "args": {"correlation": identity, "External id": identity,
                                      "device": 0, "stream": 7}},
            ]  # fmt: skip
    return events


def test_a_hostile_trace_is_told_as_it_came_under_our_own_ids(tmp_path):
    told = story_of_trace(written_trace(tmp_path / "hostile.json.gz", hostile_events()))
    assert whole(told)
    names = column(table(told, "kernels"), "kernel")
    assert MARKUP in names
    assert "record_shapes=True" in words(told)
    assert all("<" not in one.id for one in [*blocks(told, Table), *blocks(told, Chart)])
    assert all(len(str(name)) <= 60 for name in chart(told, "kernel-tiles").series[0].x)
