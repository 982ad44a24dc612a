"""What a report says of runs that came to a good end."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from story_reading import (
    CAUSES,
    blocks,
    chart,
    column,
    run_subject,
    section,
    table,
    trace_subject,
    unpacked,
    whole,
    words,
)

from stepscope.report.story.blocks import Card, Missing, TimelineView
from stepscope.report.story.run.story import run_screen, story_of_run

RECORDED = sorted(path.stem for path in (CAUSES / "recorded").glob("*.zip"))


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    return run_subject(unpacked("loader_transform", tmp_path_factory.mktemp("runs")))


@pytest.fixture(scope="module")
def story(subject):
    return story_of_run(subject)


@pytest.fixture
def on_gpu(subject):
    """The same run as if it had been on a GPU, with the window of another."""
    window = trace_subject("resnet18_b32_h200")
    tables = subject.tables
    samples = tables.samples.copy()
    for column_, value in {"gpu_percent": 60.0, "gpu_power_w": 300.0, "gpu_sm_mhz": 1900.0}.items():
        samples[column_] = value
    document = copy.deepcopy(subject.document) | {
        "timeline": window.document,
        "phases_device_ms": {"h2d": 0.3, "forward": 1.0, "backward": 2.0, "optimizer": 0.2},
        "gpu": {
            "name": "NVIDIA H200", "busy_fraction": 0.64, "utilization_percent": 60.0,
            "peak_allocated_bytes": 9 << 30, "peak_reserved_bytes": 10 << 30,
            "total_bytes": 140 << 30, "allocator_retries": 0, "energy_j": 900.0,
            "energy_j_per_step": 11.0, "power_w": 310.0, "sm_mhz": 1900.0, "temperature_c": 50.0,
            "throttled_by": ["power cap"], "other_processes": 0, "kernels_per_step": 300.0,
        },
        "memory": {
            "device": "cuda", "peak_bytes": 9 << 30, "lines": None,
            "owners": {"parameters": 1 << 30, "activations": 7 << 30, "rest": 1 << 30},
        },
    }  # fmt: skip
    return subject.replaced(
        document=document,
        timeline=lambda _: window.timeline,
        tables=replace(tables, samples=samples),
    )


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_run_has_a_whole_story(name, tmp_path):
    told = story_of_run(run_subject(unpacked(name, tmp_path)))
    assert whole(told)
    assert told.kind == "run"
    assert section(told, "findings").blocks


def test_the_verdict_names_the_cause_and_what_the_step_could_take(story, subject):
    speedup = subject.document["headroom"]["speedup"]
    assert story.verdict.startswith(subject.document["findings"][0]["title"])
    assert f"Up to {speedup:.1f}× faster" in story.verdict
    assert "80 steps" in story.subtitle


def test_sections_come_in_the_order_people_ask(story):
    order = ["summary", "step", "findings", "run", "timeline", "kernels", "data", "memory"]
    ids = [part.id for part in story.sections if part.id in order]
    assert ids == order
    assert story.sections[-1].id == "quality"


def test_phases_of_the_bar_add_up_to_the_step(story, subject):
    drawn = sum(series.y[0] for series in chart(story, "phases").series)
    assert drawn == pytest.approx(subject.document["steps"]["mean_ms"])


def test_warm_up_and_recorded_steps_are_marked_apart(story, subject):
    steps = subject.document["steps"]
    found = {series.name: series for series in chart(story, "step-times").series}
    assert len(found["warm-up"].x) == steps["warmup_steps"]
    assert len(found["recorded"].x) == steps["window_steps"]
    assert len(found["measured"].x) == steps["measured_steps"]
    assert found["mean"].line
    counted = sum(chart(story, "step-histogram").series[0].y)
    assert counted == steps["measured_steps"]


def test_the_account_adds_up_to_the_run(story, subject):
    parts = table(story, "account")
    total = sum(subject.document["account_s"].values())
    assert sum(column(parts, "time")) == pytest.approx(total)
    assert sum(column(parts, "share")) == pytest.approx(1.0)


def test_cards_stand_in_the_order_of_show(on_gpu):
    both = trace_subject("resnet18_b32_h200").document["findings"]
    document = on_gpu.document | {"findings": [*both, *on_gpu.document["findings"]]}
    told = story_of_run(on_gpu.replaced(document=document))
    assert [card.id for card in blocks(told, Card)] == [one["id"] for one in document["findings"]]


def test_a_card_shows_the_line_as_it_was_and_as_it_would_be(story, subject):
    card = blocks(story, Card)[0]
    edit = subject.document["findings"][0]["edit"]
    assert card.excerpt is not None
    meant = card.excerpt.lines[card.excerpt.line - card.excerpt.first]
    assert meant == card.before == edit["before"]
    assert card.edit == edit["after"]
    assert card.excerpt.file == "loader_transform.py"
    assert card.command.startswith("stepscope run --fix workers=")
    assert card.command.endswith("loader_transform.py")
    assert "×" in card.predicted
    assert "–" in card.predicted


def test_a_card_leads_to_the_longest_wait_in_the_timeline(story, subject):
    card, timeline = blocks(story, Card)[0], subject.timeline
    assert card.search.startswith("enumerate(DataLoader)")
    host = timeline.host
    named = host.name == timeline.names.index(card.search)
    start, end = card.at_ns
    assert end - start == host.duration[named].max()


def test_the_timeline_counts_what_was_recorded(story, subject):
    view = blocks(story, TimelineView)[0]
    assert view.events == subject.document["timeline"]["quality"]["kept"]
    assert view.trace == "window.pt.trace.json.gz"


def test_a_pipeline_is_told_by_transform_and_line(story):
    parts = table(story, "pipeline")
    assert column(parts, "part")[0] == "Blur"
    assert sum(column(parts, "share")) == pytest.approx(1.0)
    assert set(column(parts, "what")) >= {"transform", "line", "collate"}


def test_without_a_gpu_the_host_is_told_of_and_the_gap_is_named(story):
    assert section(story, "kernels").title == "Operators"
    assert table(story, "host-operators").rows
    assert any("No GPU was used" in one.what for one in blocks(story, Missing, "machine"))


def test_on_a_gpu_kernels_memory_and_power_are_told(on_gpu):
    told = story_of_run(on_gpu)
    assert whole(told)
    assert table(told, "kernels").rows
    assert section(told, "idle").blocks
    assert chart(told, "phases").series[0].x == ["step", "host", "GPU"]
    assert {"gpu-use", "gpu-power", "gpu-clock"} <= {
        one.id for one in section(told, "machine").blocks if hasattr(one, "id")
    }
    assert chart(told, "memory-owners").series[0].y == [7.0, 1.0, 1.0]
    assert "The GPU was throttled: power cap." in words(told)


def test_long_runs_are_drawn_with_all_their_extremes(subject):
    losses = np.linspace(5.0, 1.0, 10_000)
    losses[7777] = 40.0
    document = subject.document | {"losses": [None, *losses[1:].tolist()]}
    found = chart(story_of_run(subject.replaced(document=document)), "losses")
    assert len(found.series[0].x) <= 2000
    assert max(found.series[0].y[1:]) == 40.0
    assert "of every" in found.note
    assert "1 of 10,000 steps have no finite loss" in found.note


def test_a_fix_that_was_asked_for_is_told_of(subject):
    fixes = [
        {"name": "pin", "value": None, "state": "not applicable", "kind": "exact", "where": [],
         "reasons": ["there is no GPU"]},
    ]  # fmt: skip
    told = story_of_run(subject.replaced(document=subject.document | {"fixes": fixes}))
    assert "pin not applied: there is no GPU" in words(told)


CONTEST = {
    "candidate": ["foreach"],
    "kept": False,
    "ratio": 0.97,
    "low": 0.94,
    "high": 1.01,
    "pairs": 4,
    "steps": 64,
    "seconds": 0.6,
    "before_ms": 10.0,
    "after_ms": 10.3,
    "in_place": True,
}
KEPT = CONTEST | {"candidate": ["amp=bf16"], "kept": True, "ratio": 1.6, "low": 1.5, "high": 1.7}


def tried(subject, kept, contests, stopped):
    before, after = (16.0, 10.0) if contests else (None, None)
    auto = {"allow": "numeric", "kept": kept, "contests": contests, "stopped": stopped}
    auto |= {"before_ms": before, "after_ms": after}
    return subject.replaced(document=subject.document | {"auto": auto})


@pytest.mark.parametrize("tell", [run_screen, story_of_run])
def test_what_auto_kept_is_told_with_all_its_contests(tell, subject):
    story = tell(tried(subject, ["amp=bf16"], [CONTEST, KEPT], "done"))
    assert "--auto kept amp=bf16: 1.60× faster, 16.0 → 10.0 ms" in words(story)
    assert column(table(story, "contests"), "fix") == ["foreach", "amp=bf16"]
    assert column(table(story, "contests"), "kept") == ["no", "yes"]


@pytest.mark.parametrize(
    ("stopped", "why"),
    [
        (None, "the program ended first"),
        ("compiles", "the program compiles"),
        ("too_short", "the run is too short to pay a contest back"),
    ],
)
def test_why_auto_kept_nothing_is_told(stopped, why, subject):
    assert f"--auto kept nothing: {why}" in words(run_screen(tried(subject, [], [], stopped)))


def test_contests_of_a_tune_are_told_as_such(subject):
    trial = tried(subject, ["amp=bf16"], [CONTEST, KEPT], "done")
    auto = trial.document["auto"] | {"for_tune": True}
    told = run_screen(trial.replaced(document=trial.document | {"auto": auto}))
    assert "in this trial tune kept amp=bf16: 1.60× faster" in words(told)


def test_masked_arguments_are_in_no_command(subject):
    run = subject.document["run"] | {"argv": ["--token", "***"]}
    told = story_of_run(subject.replaced(document=subject.document | {"run": run}))
    assert blocks(told, Card)[0].command.endswith(" …")


def test_paths_of_strangers_are_never_opened(subject, tmp_path):
    secret = tmp_path / "secret.py"
    secret.write_text("password = 1\n")
    one = copy.deepcopy(subject.document["findings"][0])
    one["where"] = [{"file": str(secret), "line": 1, "operator": None, "kernel": None}]
    told = story_of_run(subject.replaced(document=subject.document | {"findings": [one]}))
    assert blocks(told, Card)[0].excerpt is None
