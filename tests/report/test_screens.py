"""The main screens, word for word: a rewording is a diff to look at.

STEPSCOPE_UPDATE_SNAPSHOTS=1 writes them anew.
"""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from batch_world import World
from diagnosing import finding
from recordings import recorded
from snapshots import check_screen
from subjects import of_document
from test_findings_screen import ITEM, LOADER, SAVING, document
from test_terminal import CPU, GPU, fix
from tune_documents import rung, tuned

from stepscope.analyze.run.document import to_json
from stepscope.analyze.timeline.document import analyze_ranks, trace_analysis
from stepscope.batch.document import batch_result
from stepscope.batch.program import BatchRequest, search_program
from stepscope.hardware.ceiling_cache import CEILING_NAMES
from stepscope.launch.program import Program
from stepscope.record.finding import Diagnosis, FixRef, RefusedFix
from stepscope.report.story.batch import batch_story
from stepscope.report.story.fixes import FixDescription, fix_story, fixes_story
from stepscope.report.story.machine import machine_story
from stepscope.report.story.run.story import run_screen, story_of_run
from stepscope.report.story.trace.story import story_of_ranks, story_of_trace, trace_screen
from stepscope.report.story.tune.story import tune_story
from stepscope.results.load import decode
from stepscope.tune.document import Tune

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
    given["fix_effect"] = fix_effect()
    return given


def fix_effect(**changes):
    return {
        "fixes": ["workers=12"], "against": "1115-0530-def",
        "before_ms": 170.4, "after_ms": 63.1, "by_samples": False,
        "before_samples_per_s": 188.0, "after_samples_per_s": 507.0,
        "measured": {"speedup": 2.7, "low": 2.6, "high": 2.8}, "verdict": "faster",
        "predicted": {"speedup": 2.6, "low": 2.4, "high": 2.8},
    } | changes  # fmt: skip


def next_fix_run():
    """One with workers, to which another fix is promised, and a third would not apply."""
    looped = finding(
        "launch.launch_bound", title="GPU waits for kernel launches", why="Kernels are short.",
        advice="Launch more work at once.", kind="numeric", refused=(RefusedFix(
            FixRef("cuda_graph"), {"reason": "recurrent"},
            "Net: lstm is recurrent and keeps state that a graph cannot restore",
        ),),
    )  # fmt: skip
    pinned = finding(
        "data.no_pinning", 40.0, now=63.1, title="Batches are copied from pageable memory",
        fix=FixRef("pin"), advice="Copy batches with `.to(device, non_blocking=True)`.",
    )  # fmt: skip
    given = document(pinned, looped, base=ON_GPU)
    given["fixes"] = [
        fix("workers", "applied", value=12, kind="exact", where=["DataLoader at train.py:31"])
    ]
    given["fix_effect"] = fix_effect(
        before_ms=31.5,
        verdict="slower",
        measured={"speedup": 0.5, "low": 0.4, "high": 0.6},
        predicted=None,
    )
    return given


def crashed_run():
    given = document(base=ON_GPU)
    given["run"] |= {
        "exit_code": 1,
        "out_of_memory": {"device": "cuda", "requested_bytes": 1 << 30},
    }
    return given


def trace(found=True):
    given = to_json(trace_analysis(recorded("resnet18_b32_h200")))
    one = finding("launch.x", 9.0, now=given["steps"]["mean_ms"], title="Short kernels")
    return given | msgspec.to_builtins(Diagnosis([one] if found else []))


def ranks():
    recording = recorded("a100_nccl_rank0")
    return to_json(analyze_ranks([recording, recording]))


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
        "wall": "namespaces",
        "can_measure": [
            {"what": "steps and phases", "ok": True, "detail": "torch 2.13.0+cpu"},
            {"what": "energy", "ok": False, "detail": "needs an NVIDIA GPU"},
        ],
        "ceilings": {"device": "AMD EPYC", "measured_at": "2026-11-15", "ceilings": entries},
        "cautions": ["The machine is busy: load 11.24 on 4 usable cores."],
        "problem": None,
    }  # fmt: skip


FAILED = {"reason": "trial_failed", "status": "not_applicable", "detail": "view at train.py:24"}
NOISE = {"kind": "unstable", "detail": "blocks vary by 9%", "trials": 2, "of": 14}


def tune(**changes):
    return tune_story(decode(tuned(**changes), Tune))


def batch(world):
    return batch_story(searched(world))


def searched(world):
    request, program = BatchRequest(), Program("train.py", ("--epochs", "3"), False)
    found = search_program(request, world.run, world.look, lambda batch, got: None)
    made = batch_result(found, request, program, "2026-01-01T00:00:00+00:00")
    return msgspec.structs.replace(made, versions={"torch": "2.11.0+cu130"})


def several_rungs():
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
    "run-next-fix": lambda: run_screen(result(next_fix_run())),
    "run-healthy": lambda: run_screen(result(document(base=ON_GPU))),
    "run-out-of-memory": lambda: run_screen(result(crashed_run())),
    "trace": lambda: trace_screen(result(trace(), "trace")),
    "trace-all": lambda: story_of_trace(result(trace(), "trace")),
    "trace-healthy": lambda: trace_screen(result(trace(found=False), "trace")),
    "ranks": lambda: story_of_ranks(result(ranks(), "ranks")),
    "doctor": lambda: machine_story(machine()),
    "fixes": lambda: fixes_story([FIX, TF32]),
    "fix": lambda: fix_story(FIX),
    "tune": lambda: tune(),
    "tune-cut-short": lambda: tune(**several_rungs()),
    "tune-nothing-helped": lambda: tune(ladder=[], final=None, command=None, patch=None),
    "batch": lambda: batch(World()),
    "batch-at-its-knee": lambda: batch(World(own=256, falls_from=512)),
    "batch-out-of-memory": lambda: batch(World(own=2048)),
}


@pytest.mark.parametrize("name", STORIES)
def test_the_screen_reads_as_it_was_looked_at(name, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    check_screen(name, STORIES[name](), detail=name.endswith("-all"))
