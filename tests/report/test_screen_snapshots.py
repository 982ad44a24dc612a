"""The screens of tune and batch, compared as text: a rewording is a diff to look at.

STEPSCOPE_UPDATE_SNAPSHOTS=1 writes them anew.
"""

import io
import os
from pathlib import Path

import msgspec
import pytest
from batch_world import World
from tune_documents import rung, tuned

from stepscope.batch.document import batch_result
from stepscope.batch.program import BatchRequest, search_program
from stepscope.launch.program import Program
from stepscope.report.render.terminal.story import print_story
from stepscope.report.story.batch import batch_story
from stepscope.report.story.tune.story import tune_story
from stepscope.results.load import decode
from stepscope.tune.document import Tune

SNAPSHOTS = Path(__file__).parent / "snapshots"
FAILED = {"reason": "trial_failed", "status": "not_applicable", "detail": "view at train.py:24"}
NOISE = {"kind": "unstable", "detail": "blocks vary by 9%", "trials": 2, "of": 14}


def tune_screen(**changes):
    stream = io.StringIO()
    print_story(tune_story(decode(tuned(**changes), Tune)), stream)
    return stream.getvalue()


def batch_screen(world):
    request, program = BatchRequest(), Program("train.py", ("--epochs", "3"), False)
    found = search_program(request, world.run, world.look, lambda batch, got: None)
    result = batch_result(found, request, program, "2026-01-01T00:00:00+00:00")
    stream = io.StringIO()
    result = msgspec.structs.replace(result, versions={"torch": "2.11.0+cu130"})
    print_story(batch_story(result), stream)
    return stream.getvalue()


def several():
    """A tune with rungs of all kinds, fixes that failed, and a search cut short."""
    compiled = rung("compile=default", 1.2, 3.6, compile_s=41.0, pays_after_steps=900)
    semantic = rung("batch=256", 1.1, 3.9, kind="semantic", changes=["batch_size"])
    return {
        "ladder": [rung("workers=8", 2.0, 2.0, 2.2), compiled, semantic],
        "rejected": [
            {"fix": "channels_last", "state": "not_applicable", "because": FAILED},
            {"fix": "sdpa", "state": "not_better", "because": {"reason": "within_noise"},
             "speedup": 1.03, "low": 0.99, "high": 1.07, "verdict": "unclear"},
            {"fix": "drop_last", "state": "left_out",
             "because": {"reason": "not_allowed", "detail": "semantic"}},
        ],
        "stopped": "budget",
        "untried": ["cuda_graph"],
        "notes": [NOISE],
    }  # fmt: skip


SCREENS = {
    "tune": lambda: tune_screen(),
    "tune-cut-short": lambda: tune_screen(**several()),
    "tune-nothing-helped": lambda: tune_screen(ladder=[], final=None, command=None, patch=None),
    "batch": lambda: batch_screen(World()),
    "batch-at-its-knee": lambda: batch_screen(World(own=256, falls_from=512)),
    "batch-out-of-memory": lambda: batch_screen(World(own=2048)),
}


@pytest.mark.parametrize("name", SCREENS)
def test_the_screen_is_as_it_was(name):
    path, screen = SNAPSHOTS / f"{name}.txt", SCREENS[name]()
    if os.environ.get("STEPSCOPE_UPDATE_SNAPSHOTS"):
        path.write_text(screen)
    assert screen == path.read_text()
    assert max(map(len, screen.splitlines())) <= 80
