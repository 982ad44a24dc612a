"""What a report says of runs that tell little: crashed, empty, without a window, still running."""

import json

import pytest
from story_reading import blocks, run_subject, section, unpacked, whole, words

from stepscope.report.story.blocks import Card, Chart, Missing, TimelineView
from stepscope.report.story.run.story import story_of_run


@pytest.fixture
def folder(tmp_path):
    return unpacked("loader_transform", tmp_path)


def without_window(folder):
    for name in ("window.pt.trace.json.gz", "window.json"):
        (folder / name).unlink()
    facts = (folder / "facts.jsonl").read_text().splitlines()
    kept = [line for line in facts if json.loads(line)["fact"] != "window"]
    (folder / "facts.jsonl").write_text("\n".join(kept) + "\n")
    return folder


def with_ending(folder, facts=(), **run):
    document = json.loads((folder / "run.json").read_text())
    document["run"] |= run
    (folder / "run.json").write_text(json.dumps(document))
    kept = [
        line
        for line in (folder / "facts.jsonl").read_text().splitlines()
        if json.loads(line)["fact"] != "end"
    ]
    (folder / "facts.jsonl").write_text("\n".join([*kept, *map(json.dumps, facts)]) + "\n")
    return folder


def empty(folder):
    for path in folder.iterdir():
        if path.name != "run.json":
            path.unlink()
    return folder


def hints(story, part):
    return [one.command or one.how for one in blocks(story, Missing, part)]


def test_without_a_window_the_command_that_records_one_is_given(folder):
    story = story_of_run(run_subject(without_window(folder)))
    assert whole(story)
    again = "stepscope run --window-at 2 /home/me/project/tests/causes/programs/loader_transform.py"
    assert hints(story, "timeline") == [again]
    assert hints(story, "kernels") == [again]
    assert again in hints(story, "findings")
    assert not blocks(story, TimelineView)
    assert blocks(story, Card)


def test_a_window_that_was_switched_off_is_said_to_be(folder):
    subject = run_subject(without_window(folder))
    run = subject.document["run"] | {"window": None}
    story = story_of_run(subject.replaced(document=subject.document | {"run": run}))
    assert "recording was off" in words(story)


def test_a_crashed_run_is_told_with_what_it_raised(folder):
    end = {
        "fact": "end", "steps": 80,
        "error": {"type": "ValueError", "text": "<img src=x onerror=alert(1)>\nmore"},
    }  # fmt: skip
    story = story_of_run(run_subject(with_ending(without_window(folder), [end], exit_code=1)))
    assert whole(story)
    assert story.verdict.startswith("Raised ValueError: <img src=x onerror=alert(1)>. ")
    assert section(story, "summary").blocks[0].strong


def test_out_of_memory_names_the_largest_owners(folder):
    subject = run_subject(folder)
    memory = {"device": "cuda", "requested_bytes": 2 << 30}
    run = subject.document["run"] | {"exit_code": 1, "out_of_memory": memory}
    story = story_of_run(subject.replaced(document=subject.document | {"run": run}))
    assert story.verdict.startswith("Out of GPU memory allocating 2.0 GiB.")
    assert "Largest owners: parameters" in words(story)


def test_a_killed_observer_leaves_a_story_of_what_is_known(folder):
    story = story_of_run(run_subject(with_ending(folder, exit_code=None)))
    assert whole(story)
    assert "Results so far:" in story.verdict


def test_an_empty_run_says_what_a_step_is(folder):
    story = story_of_run(run_subject(empty(folder)))
    assert whole(story)
    assert story.verdict == "No steps seen."
    for part in ("summary", "step", "findings", "timeline", "kernels"):
        assert "stepscope.step()" in hints(story, part)[-1]
    assert not blocks(story, Card)
    assert not blocks(story, Chart, "losses")


def test_inference_says_that_there_is_no_loss(folder):
    subject = run_subject(folder)
    steps = subject.document["steps"] | {"what": "inference"}
    document = subject.document | {"steps": steps, "losses": [None] * 80}
    story = story_of_run(subject.replaced(document=document))
    assert "this is inference" in words(story)
    assert "80 model calls" in story.subtitle


def test_a_healthy_run_says_that_nothing_was_found(tmp_path):
    story = story_of_run(run_subject(unpacked("healthy_products", tmp_path)))
    assert story.verdict.startswith("No bottleneck found")
    assert section(story, "findings").title == "Findings"
    assert not blocks(story, Card)


def test_problems_are_told_last(folder):
    subject = run_subject(folder)
    document = subject.document | {"problems": ["the rule x failed: KeyError('y')"]}
    story = story_of_run(subject.replaced(document=document))
    assert section(story, "quality").blocks[0].text == "The rule x failed: KeyError('y')."
