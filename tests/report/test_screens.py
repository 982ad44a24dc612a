"""The main screens, word for word: a rewording is a diff to look at.

`UPDATE_SCREENS=1 pytest tests/report/test_screens.py` writes them anew.
"""

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from diagnosing import finding
from msgspec import to_builtins
from recordings import recorded
from test_findings_screen import ITEM, LOADER, SAVING, document
from test_terminal import CPU, GPU, fix

from stepscope.analyze.timeline.document import analyze_ranks, analyze_timeline
from stepscope.hardware.ceiling_cache import CEILING_NAMES
from stepscope.record.finding import Diagnosis
from stepscope.report.render.terminal.story import print_story
from stepscope.report.story.fixes import FixDescription, fix_story, fixes_story
from stepscope.report.story.machine import machine_story
from stepscope.report.story.run.story import run_screen, story_of_run
from stepscope.report.story.trace.story import story_of_ranks, story_of_trace, trace_screen
from stepscope.results.load import of_document

SCREENS = Path(__file__).parent / "screens"
ON_GPU = CPU | {
    "gpu": GPU,
    "run": CPU["run"] | {"device": "cuda", "torch": "2.11.0+cu130"},
    "phases_ms": CPU["phases_ms"] | {"h2d": 2.7, "forward": 3.0},
}


def result(found, kind="run"):
    return of_document(kind, "result", found)


def slow_run():
    return document(LOADER, ITEM, SAVING, base=ON_GPU)


def fixed_run():
    given = document(ITEM, base=ON_GPU)
    given["fixes"] = [
        fix("workers", "applied", value=12, kind="exact", where=["DataLoader at train.py:31"]),
        fix("channels_last", "not applicable", reasons=["no convolution in the model"]),
    ]
    given["problems"] = ["other processes used 1.6 of 2 cores during this run"]
    return given


def crashed_run():
    given = document(base=ON_GPU)
    given["run"] |= {
        "exit_code": 1,
        "out_of_memory": {"device": "cuda", "requested_bytes": 1 << 30},
    }
    return given


def trace(found=True):
    given = analyze_timeline(recorded("resnet18_b32_h200"))
    one = finding("launch.x", 9.0, now=given["steps"]["mean_ms"], title="Short kernels")
    return given | to_builtins(Diagnosis([one] if found else []))


def ranks():
    recording = recorded("a100_nccl_rank0")
    return analyze_ranks([recording, recording])


def machine():
    entries = {
        name: {"value": 100.0 / (place + 1), "spread": 0.02}
        for place, name in enumerate(CEILING_NAMES)
    }
    return {
        "machine": {
            "cpu": {
                "model": "AMD EPYC", "physical_cores": 8, "logical_cores": 16, "usable_cores": 4,
                "numa_nodes": 1, "governor": None, "virtual": True, "load_average": None,
            },
            "memory": {"total_bytes": 24 << 30, "available_bytes": 20 << 30, "limit_bytes": None},
            "gpus": [], "topology": [], "driver": None, "python": "3.12.3",
            "torch": {"version": "2.13.0+cpu", "cuda": None},
        },
        "can_measure": [
            {"what": "steps and phases", "ok": True, "detail": "torch 2.13.0+cpu"},
            {"what": "energy", "ok": False, "detail": "needs an NVIDIA GPU"},
        ],
        "ceilings": {"device": "AMD EPYC", "measured_at": "2026-11-15", "ceilings": entries},
        "cautions": ["The machine is busy: load 11.24 on 4 usable cores."],
        "problem": None,
    }  # fmt: skip


FIX = FixDescription(
    name="workers", group="data", title="make batches in worker processes", kind="exact",
    effort="one argument", needs=None, values=("N",), suggested=("4", "8"), bad_with=("cache",),
    edit="pass num_workers=4 to the DataLoader",
)  # fmt: skip
TF32 = replace(FIX, name="tf32", group="arithmetic", title="TF32 products", kind="numeric")

STORIES = {
    "run": lambda: run_screen(result(slow_run())),
    "run-all": lambda: story_of_run(result(slow_run())),
    "run-fix": lambda: run_screen(result(fixed_run())),
    "run-healthy": lambda: run_screen(result(document(base=ON_GPU))),
    "run-out-of-memory": lambda: run_screen(result(crashed_run())),
    "trace": lambda: trace_screen(result(trace(), "trace")),
    "trace-all": lambda: story_of_trace(result(trace(), "trace")),
    "trace-healthy": lambda: trace_screen(result(trace(found=False), "trace")),
    "ranks": lambda: story_of_ranks(result(ranks(), "ranks")),
    "doctor": lambda: machine_story(machine()),
    "fixes": lambda: fixes_story([FIX, TF32]),
    "fix": lambda: fix_story(FIX),
}


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("name", STORIES)
def test_the_screen_reads_as_it_was_looked_at(name, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(Path(__file__).parents[2])
    stream = io.StringIO()
    print_story(STORIES[name](), stream, detail=name.endswith("-all"))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= width
    kept = SCREENS / f"{name}{'' if width == 80 else f'-{width}'}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        kept.write_text(text, encoding="utf-8")
    assert text == kept.read_text(encoding="utf-8")
