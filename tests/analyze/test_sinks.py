"""The largest time sinks of a step, each with its place in the source."""

import pytest
from documents import made
from msgspec import to_builtins

from stepscope.analyze.run import sites as module
from stepscope.analyze.run.document import RunSummary

PHASES = {
    "data_wait": 50.0, "h2d": 5.0, "forward": 20.0, "backward": 20.5, "optimizer": 4.0,
    "other": 0.5,
}  # fmt: skip


def document(phases=PHASES, what="training", **more):
    total = sum(phases.values())
    known = {
        "steps": {"mean_ms": total, "what": what, "count": 100},
        "phases_ms": phases,
        "sites": [],
        "syncs": [],
        "loaders": [],
        "pipeline": [],
    }
    return known | more


def largest_sinks(document):
    run = made(RunSummary, document)
    detail = module.loader_detail(run.loaders, run.pipeline)
    return to_builtins(module.largest_sinks(run.steps, run.phases_ms, run.sites, run.syncs, detail))


def only(phase, ms=10.0):
    """A step that is one phase."""
    return dict.fromkeys(PHASES, 0.0) | {phase: ms}


def site(what, line, file="/home/me/train.py"):
    return {"what": what, "file": file, "line": line, "function": "f", "count": 1, "total_ms": 1.0}


def sync(what, line, lost_ms=1000.0):
    return {
        "what": what, "count": 9, "lost_ms": lost_ms, "bytes": None, "file": "train.py",
        "line": line,
    }  # fmt: skip


def part(name, share, what="transform", file="/home/me/data.py", line=41):
    return {"what": what, "name": name, "share": share, "file": file, "line": line}


def test_the_three_largest_phases_come_first():
    found = largest_sinks(document())
    assert [sink["phase"] for sink in found] == ["data_wait", "backward", "forward"]
    assert [sink["ms"] for sink in found] == [50.0, 20.5, 20.0]
    assert [sink["share"] for sink in found] == pytest.approx([0.5, 0.205, 0.2])


def test_phases_too_small_to_matter_are_left_out():
    assert [sink["phase"] for sink in largest_sinks(document(only("forward")))] == ["forward"]


@pytest.mark.parametrize("mean", [None, 0.0])
def test_without_steps_there_are_no_sinks(mean):
    told = document()
    told["steps"]["mean_ms"] = mean
    assert largest_sinks(told) == []


def test_a_sink_names_the_hottest_line_of_its_phase():
    sites = [site("backward", 7), site("forward", 31), site("forward", 99)]
    [sink] = largest_sinks(document(only("forward"), sites=sites))
    assert (sink["file"], sink["line"]) == ("/home/me/train.py", 31)


def test_a_phase_without_a_known_line_has_no_place():
    [sink] = largest_sinks(document(only("optimizer")))
    assert (sink["file"], sink["line"], sink["detail"]) == (None, None, None)


def test_in_inference_a_call_without_gradients_is_the_forward():
    sites = [site("evaluation", 12)]
    [sink] = largest_sinks(document(only("forward"), what="inference", sites=sites))
    assert sink["line"] == 12
    [sink] = largest_sinks(document(only("forward"), sites=sites))
    assert sink["line"] is None


def test_a_slow_loader_names_its_workers_and_its_slowest_part():
    told = document(
        only("data_wait"),
        sites=[site("data_wait", 50)],
        loaders=[{"num_workers": 2}],
        pipeline=[{"parts": [part("rest", 0.9, "rest"), part("Resize", 0.61)]}],
    )
    [sink] = largest_sinks(told)
    assert sink["line"] == 50
    assert sink["detail"] == "num_workers=2; Resize, data.py:41 is 61% of it"


def test_a_pipeline_without_a_part_that_stands_out_says_nothing_of_parts():
    pipeline = [{"parts": [part("Resize", 0.1)]}, {"parts": []}]
    told = document(only("data_wait"), loaders=[{"num_workers": 0}], pipeline=pipeline)
    assert largest_sinks(told)[0]["detail"] == "num_workers=0"


def test_a_part_without_a_place_is_named_all_the_same():
    pipeline = [{"parts": [part("collate", 0.5, "collate", file=None, line=None)]}]
    told = document(only("data_wait"), loaders=[{"num_workers": 0}], pipeline=pipeline)
    assert largest_sinks(told)[0]["detail"] == "num_workers=0; collate is 50% of it"


def test_copies_from_pageable_memory_are_named():
    told = document(only("h2d"), syncs=[sync("item", 3), sync("pageable copy", 44)])
    [sink] = largest_sinks(told)
    assert sink["line"] == 44
    assert "pageable" in sink["detail"]


def test_copies_from_pinned_memory_name_their_line_only():
    [sink] = largest_sinks(document(only("h2d"), sites=[site("h2d", 45)]))
    assert (sink["line"], sink["detail"]) == (45, None)


def test_other_is_explained_by_the_line_that_waits_most():
    [sink] = largest_sinks(document(only("other"), syncs=[sync("item", 58), sync("cpu", 60, 5.0)]))
    assert sink["line"] == 58
    assert "item" in sink["detail"]


def test_waits_that_are_only_a_little_of_other_do_not_explain_it():
    [sink] = largest_sinks(document(only("other"), syncs=[sync("item", 58, lost_ms=10.0)]))
    assert sink["detail"] is None


def test_every_sink_has_the_same_fields():
    told = document(sites=[site("forward", 1)], loaders=[{"num_workers": 0}])
    fields = {"phase", "title", "ms", "share", "file", "line", "detail"}
    assert all(set(sink) == fields for sink in largest_sinks(told))
