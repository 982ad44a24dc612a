"""The screen a run ends with, from documents made by hand."""

import copy
import io
import re
import unicodedata

import pytest
from subjects import of_document

from stepscope.report.render.terminal.story import print_story
from stepscope.report.story.run.story import run_screen

GIB = 1 << 30
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]x[/]\r\n\x9b1m\u202e"

CPU = {
    "schema": "stepscope.show/2",
    "run": {
        "id": "1115-0538-abc", "program": "train.py", "argv": ["--epochs", "3"], "exit_code": 0,
        "device": "cpu", "torch": "2.13.0", "started": "2026-11-15T05:38:00+00:00",
        "folder": ".stepscope/1115-0538-abc", "complete": True, "under_way": False, "error": None,
        "out_of_memory": None, "signal": None, "timed_out": False,
    },
    "steps": {
        "count": 412, "what": "training", "inferred": False, "mean_ms": 63.1, "median_ms": 62.0,
        "p95_ms": 70.0, "std_ms": 3.0, "samples_per_s": 507.1, "samples_per_step": 32.0,
        "warmup_steps": 1, "window_steps": 6, "measured_steps": 405, "by_optimizer": [],
        "spikes": [], "spike_count": 0, "drift": 0.0,
    },
    "account_s": {"startup": 0.1, "imports": 2.0, "training": 26.0, "shutdown": 0.02},
    "account_places": {
        "training": {"file": "train.py", "line": 60},
        "imports": {"module": "torch", "seconds": 1.9},
    },
    "losses": [0.5],
    "phases_ms": {
        "data_wait": 48.9, "h2d": 0.0, "forward": 5.7, "backward": 5.1, "optimizer": 1.6,
        "other": 1.8,
    },
    "phases_seen_by": "host",
    "phases_host_ms": None, "phases_device_ms": None, "gpu": None, "host": None,
    "memory": {"device": "cpu", "peak_bytes": 3 * GIB, "owners": {}, "lines": None},
    "loaders": [], "pipeline": [], "syncs": [], "sites": [], "config": {}, "compile": None,
    "windows": [{"name": "window", "first": 10, "last": 15}],
    "sinks": [
        {
            "phase": "data_wait", "title": "waiting for the data loader", "ms": 48.9,
            "share": 0.775, "file": "train.py", "line": 31,
            "detail": "num_workers=0; Resize, data.py:41 is 61% of it",
        },
        {
            "phase": "forward", "title": "forward", "ms": 5.7, "share": 0.09, "file": None,
            "line": None, "detail": None,
        },
    ],
    "host_code": None, "problems": [], "fixes": [], "timeline": None, "timeline_stacks": None,
}  # fmt: skip

GPU = {
    "name": "NVIDIA H200", "busy_fraction": 0.14, "utilization_percent": 20.0,
    "peak_allocated_bytes": 3 * GIB, "peak_reserved_bytes": 4 * GIB, "total_bytes": 140 * GIB,
    "allocator_retries": 0, "energy_j": 100.0, "energy_j_per_step": 1.0, "power_w": 300.0,
    "sm_mhz": 1980.0, "temperature_c": 60.0, "throttled_by": [], "other_processes": 0.0,
    "kernels_per_step": 900.0,
}  # fmt: skip


@pytest.fixture
def document():
    return copy.deepcopy(CPU)


@pytest.fixture
def on_gpu(document):
    document["gpu"] = dict(GPU)
    document["run"]["device"] = "cuda"
    document["phases_ms"] |= {"h2d": 2.7, "forward": 3.0}
    return document


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(document, stream=None):
    stream = stream or io.StringIO()
    print_story(run_screen(of_document("run", "run", document)), stream)
    return stream.getvalue()


def fits(text, columns=80):
    lines = [ESCAPE.sub("", line) for line in text.splitlines()]
    return [line for line in lines if len(line) > columns] == []


def test_the_answer_comes_first_and_the_next_command_last(document):
    text = shown(document)
    lines = [line for line in text.splitlines() if line.strip()]
    assert lines[0].startswith("stepscope  train.py · 412 steps · CPU · torch 2.13.0")
    assert "63.1 ms per step" in lines[1]
    assert "507 samples/s" in lines[1]
    assert "peak 3.0 GiB" in lines[1]
    assert "Next:  stepscope report 1115-0538-abc --open" in text


def test_the_phases_are_bars_that_add_up(document):
    text = shown(document)
    assert re.search(r"data wait +48\.9 ▕█+.*▏ +77%", text)
    shares = [int(share) for share in re.findall(r"▏ +(\d+)%$", text, re.M)]
    assert sum(shares) == pytest.approx(100, abs=3)


def test_on_the_cpu_nothing_is_said_of_a_gpu_or_copies(document):
    text = shown(document)
    assert "GPU" not in text
    assert "copy" not in text


def test_on_a_gpu_its_share_memory_and_copies_are_there(on_gpu):
    text = shown(on_gpu)
    assert "NVIDIA H200" in text
    assert "GPU busy 14%" in text
    assert "peak 3.0 of 140 GiB" in text
    assert re.search(r"copy +2\.70", text)


def test_a_gpu_that_could_not_be_asked(on_gpu):
    on_gpu["gpu"] |= {"name": None, "busy_fraction": None, "total_bytes": None}
    text = shown(on_gpu)
    assert "CUDA" in text
    assert "None" not in text


def test_sinks_have_their_lines_and_details(document):
    text = shown(document)
    assert "waiting for the data loader" in text
    assert "train.py:31" in text
    assert "Resize, data.py:41" in text


def test_waits_for_the_device_have_their_lines(on_gpu):
    on_gpu["syncs"] = [
        {"what": "item", "count": 824, "lost_ms": 1700.0, "file": "train.py", "line": 58},
        {"what": "cpu", "count": 1, "lost_ms": 0.1, "file": "train.py", "line": 99},
    ]
    text = shown(on_gpu)
    assert re.search(r"item +train\.py:58 +824 +4\.13", text)
    assert "train.py:99" not in text


def test_the_whole_run_is_accounted_for(document):
    text = shown(document)
    assert "Whole run, 28 s" in text
    assert re.search(r"training +26\.0 +92\.5% +train\.py:60", text)
    assert re.search(r"imports +2\.00 +7\.1% +torch", text)
    assert "shutdown" not in text, "a tenth of a percent is not worth a word"


def test_spikes_drift_and_throttling_are_said(on_gpu):
    on_gpu["steps"] |= {
        "spikes": [{"step": 301, "ms": 900.0}], "spike_count": 7, "drift": 0.2,
    }  # fmt: skip
    on_gpu["gpu"] |= {"throttled_by": ["power cap"], "other_processes": 1.0}
    text = shown(on_gpu)
    assert "7 spikes: step 301 took 900 ms" in text
    assert "20% slower" in text
    assert "power cap" in text
    assert "Another process" in text


def test_steps_that_got_faster_are_called_so(document):
    document["steps"]["drift"] = -0.2
    assert "20% faster" in shown(document)


def test_a_window_that_never_came_says_how_to_get_one(document):
    document["windows"] = []
    document["run"]["window"] = 6
    assert "--window-at" in shown(document)


def test_a_window_nobody_asked_for_is_not_missed(document):
    document["windows"] = []
    document["run"]["window"] = 0
    assert "--window-at" not in shown(document)


def test_problems_are_notes(document):
    document["problems"] = [
        "recording stopped after an internal error: OSError(28, 'No space left on device')"
    ]
    assert "note: recording stopped" in shown(document)


def test_python_code_and_memory_lines_are_there_when_asked_for(document):
    document["host_code"] = {
        "sampled_s": 12.0,
        "lines": [
            {"file": "data.py", "line": 41, "function": "resize", "own_s": 6.0, "cumulative_s": 7.0}
        ],
    }
    line = {"file": "model.py", "line": 7, "function": "forward", "detail": "", "bytes": 2 * GIB}
    document["memory"]["lines"] = {"peak_bytes": 3 * GIB, "at_peak": [line], "growth": [line]}
    text = shown(document)
    assert re.search(r"data\.py:41 +resize +6\.00 +7\.00", text)
    assert re.search(r"model\.py:7 +forward", text)
    assert "Lines whose memory grew" in text


ENDINGS = {
    "a signal": ({"exit_code": 137, "signal": 9}, "signal 9 (exit code 137)"),
    "a timeout": ({"exit_code": 124, "signal": 15, "timed_out": True}, "--timeout (exit code 124)"),
    "an error": (
        {"exit_code": 1, "error": {"type": "ValueError", "text": "bad shape\nmore"}},
        "Raised ValueError: bad shape",
    ),
    "an exit code": ({"exit_code": 3}, "Exit code 3."),
    "GPU memory": (
        {
            "exit_code": 1,
            "error": {"type": "OutOfMemoryError", "text": "CUDA out of memory"},
            "out_of_memory": {"device": "cuda", "requested_bytes": 20 * GIB},
        },
        "Out of GPU memory allocating 20.0 GiB.",
    ),
    "the kernel": (
        {"exit_code": 137, "signal": 9, "out_of_memory": {"device": "cpu"}},
        "Out of memory.",
    ),
    "nothing yet": ({"exit_code": None, "under_way": True}, "Still running. Results so far:"),
    "nobody": ({"exit_code": None, "under_way": False}, "Incomplete: stepscope was killed."),
}


@pytest.mark.parametrize(("run", "words"), ENDINGS.values(), ids=ENDINGS.keys())
def test_names_the_end_brought_by(document, run, words):
    document["run"] |= run
    text = shown(document)
    assert words in text
    assert fits(text)


def test_out_of_memory_names_the_largest_owners(on_gpu):
    on_gpu["run"] |= {"exit_code": 1, "out_of_memory": {"device": "cuda"}}
    on_gpu["memory"]["owners"] = {
        "parameters": 2 * GIB, "optimizer_state": 4 * GIB, "activations": None, "rest": GIB,
    }  # fmt: skip
    text = shown(on_gpu)
    assert "optimizer state 4.0 GiB, parameters 2.0 GiB" in text
    assert fits(text)


def test_a_clean_end_is_not_mentioned(document):
    assert "exit code" not in shown(document)


def test_an_error_the_program_survived_is_not_its_end(document):
    document["run"]["error"] = {"type": "SystemExit", "text": "0"}
    assert "Raised" not in shown(document)


def without_steps(document):
    document["steps"] |= {
        "count": 0, "what": "nothing", "mean_ms": None, "median_ms": None, "p95_ms": None,
        "std_ms": None, "samples_per_s": None,
    }  # fmt: skip
    document["sinks"], document["windows"] = [], []
    document["problems"] = ["no steps seen: the program did not import torch"]
    return document


def test_no_steps_is_said_in_one_line(document):
    text = shown(without_steps(document))
    assert "0 steps" in text
    assert "note: no steps seen" in text
    assert "ms per step" not in text
    assert "Next:" in text


def test_without_steps_the_next_command_is_the_same_program(document):
    text = shown(without_steps(document))
    assert text.rstrip().endswith("with stepscope.step() in its loop")
    document["problems"] = []
    document["run"] |= {"error": {"type": "ValueError", "text": "no data"}, "exit_code": 1}
    text = shown(document)
    assert "Raised ValueError: no data." in text
    assert text.rstrip().endswith("once it runs")


def test_nothing_known_at_all_still_prints(document):
    without_steps(document)
    document["run"] |= {"device": None, "torch": None, "exit_code": None}
    document["account_s"] = document["account_places"] = {}
    document["memory"]["peak_bytes"] = None
    text = shown(document)
    assert "Whole run" not in text
    assert fits(text)


@pytest.mark.parametrize(
    ("what", "count", "words"),
    [
        ("inference", 5, ["5 model calls", "ms per model call"]),
        ("inference", 1, ["1 model call"]),
        ("batches", 5, ["5 batches", "ms per batch"]),
        ("batches", 1, ["1 batch"]),
        ("training", 1, ["1 step ", "ms per step"]),
    ],
)
def test_steps_are_called_what_they_are(document, what, count, words):
    document["steps"] |= {"what": what, "count": count}
    text = shown(document)
    assert all(word in text for word in words)


def test_inferred_steps_are_said_to_be(document):
    document["steps"]["inferred"] = True
    assert "(inferred)" in shown(document)


@pytest.mark.parametrize("made", ["document", "on_gpu"])
def test_a_usual_run_fits_80_columns(made, request):
    document = request.getfixturevalue(made)
    document["run"] |= {"torch": "2.11.0+cu130", "id": "1115-0538-abc"}
    assert fits(shown(document))


def test_long_names_fit_80_columns(on_gpu):
    deep = "/home/someone/projects/a-rather-long-name/experiments/2026-11/train_the_model.py"
    on_gpu["run"]["program"] = deep
    on_gpu["gpu"]["name"] = "NVIDIA RTX 6000 Ada Generation"
    on_gpu["sinks"][0] |= {"file": deep, "line": 1234}
    on_gpu["syncs"] = [
        {"what": "pageable copy", "count": 12345, "lost_ms": 99999.0, "file": deep, "line": 1234}
    ]
    on_gpu["account_places"]["training"]["file"] = deep
    text = shown(on_gpu)
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_long_sentences_fit_80_columns(document):
    document["windows"] = []
    document["sinks"][0]["detail"] = "num_workers=16; RandomResizedCrop, " + "augmentations" * 5
    document["problems"] = ["something that takes a good many words to say, " * 4]
    text = shown(document)
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_a_narrow_terminal_is_respected(document, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = shown(document, Terminal())
    bars = [line for line in ESCAPE.sub("", text).splitlines() if "▕" in line]
    assert bars
    assert all(len(line) <= 60 for line in bars)


STRANGERS = [
    ("run", "program"), ("run", "id"), ("run", "torch"), ("run", "folder"), ("gpu", "name"),
]  # fmt: skip


@pytest.mark.parametrize(("part", "name"), STRANGERS)
def test_names_of_strangers_cannot_touch_the_screen(on_gpu, part, name):
    on_gpu[part][name] = f"x{HOSTILE}y"
    assert_harmless(shown(on_gpu))


def assert_harmless(text):
    assert not any(unicodedata.category(char) == "Cc" and char != "\n" for char in text), (
        "a control character reached the terminal"
    )
    assert "\u202e" not in text
    assert len(text.splitlines()) == text.count("\n")


def test_texts_of_strangers_anywhere_cannot_touch_the_screen(on_gpu):
    evil = f"x{HOSTILE}y"
    on_gpu["run"] |= {"exit_code": 1, "error": {"type": evil, "text": evil}}
    on_gpu["problems"] = [evil]
    on_gpu["account_places"] = {
        "training": {"file": evil, "line": 1},
        "imports": {"module": evil, "seconds": 1.9},
    }
    on_gpu["sinks"][0] |= {"file": evil, "detail": evil}
    on_gpu["syncs"] = [
        {"what": evil, "count": 9, "lost_ms": 999.0, "bytes": 1, "file": evil, "line": 1}
    ]
    line = {"file": evil, "line": 1, "function": evil, "detail": evil, "bytes": 1}
    on_gpu["memory"]["lines"] = {"peak_bytes": 1, "at_peak": [line], "growth": [line]}
    code = {"file": evil, "line": 1, "function": evil, "own_s": 1.0, "cumulative_s": 1.0}
    on_gpu["host_code"] = {"sampled_s": 1.0, "lines": [code]}
    assert_harmless(shown(on_gpu))


def test_owners_named_by_a_stranger_cannot_touch_the_screen(on_gpu):
    on_gpu["run"] |= {"exit_code": 1, "out_of_memory": {"device": "cuda"}}
    on_gpu["memory"]["owners"] = {f"x{HOSTILE}y": GIB}
    assert_harmless(shown(on_gpu))


def test_markup_is_text_like_any_other(document):
    document["run"]["program"] = "[bold red]train[].py"
    document["problems"] = ["[link=x]y[/link] :smile:"]
    text = shown(document)
    assert "[bold red]train[].py" in text
    assert "[link=x]y[/link] :smile:" in text


def test_a_pipe_gets_no_escapes(on_gpu):
    assert "\x1b" not in shown(on_gpu)


def test_no_color_is_respected_on_a_terminal(on_gpu, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    colours = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|38)[0-9;]*m")
    assert not colours.search(shown(on_gpu, Terminal()))


def test_a_terminal_gets_colours(on_gpu, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in shown(on_gpu, Terminal())


def test_an_ascii_stream_is_no_reason_to_fail(on_gpu):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict", write_through=True)
    print_story(run_screen(of_document("run", "run", on_gpu)), stream)
    assert b"63.1 ms per step" in raw.getvalue()


def fix(name, state, **more):
    return {
        "name": name,
        "value": None,
        "state": state,
        "kind": None,
        "where": [],
        "reasons": [],
        **more,
    }


def test_what_became_of_each_fix_is_said(document):
    document["fixes"] = [
        fix("workers", "applied", value=4, kind="exact", where=["DataLoader at train.py:31"]),
        fix("channels_last", "not applicable", reasons=["no convolution in the model"]),
        fix("amp", "broke", value="fp16", where=["Net"], reasons=["half is not implemented"]),
    ]
    screen = shown(document)
    assert "workers=4 applied: DataLoader at train.py:31 · exact" in screen
    assert "channels_last not applied: no convolution in the model" in screen
    assert "amp=fp16 failed: half is not implemented" in screen


def test_why_the_gpu_was_idle_is_said_in_shares(on_gpu):
    on_gpu["timeline"] = {
        "breakdown_ns": {"idle": 600, "wall": 1000},
        "idle_ns": {"host": 450, "loader": 140, "unknown": 10},
    }
    on_gpu["timeline_stacks"] = {"idle_places": {"host": [{"where": "train.py(7): main"}]}}
    screen = shown(on_gpu)
    assert re.search(r"the host launches too slowly +75\.0% +train\.py\(7\): main", screen)
    assert re.search(r"waiting for the data loader +23\.3%", screen)
    assert "unexplained" not in screen


def test_a_gpu_that_is_hardly_idle_needs_no_reasons(on_gpu):
    on_gpu["timeline"] = {"breakdown_ns": {"idle": 10, "wall": 1000}, "idle_ns": {"host": 10}}
    assert "Why the GPU is idle" not in shown(on_gpu)


def _beside_others(document, own, others):
    document["config"] = {"machine": {"cpu": {"usable_cores": 2}}}
    document["host"] = {"cpu_percent": own, "other_cpu_percent": others}
    return document


@pytest.mark.parametrize(("own", "others"), [(60.0, 140.0), (190.0, 30.0)])
def test_a_busy_machine_stands_above_the_figures(document, own, others):
    text = shown(_beside_others(document, own, others))
    said = f"other processes used {others / 100:.1f} of 2 cores"
    assert said in text
    assert text.index(said) < text.index("63.1 ms")


@pytest.mark.parametrize(("own", "others"), [(180.0, 5.0), (60.0, 60.0), (60.0, None)])
def test_a_machine_with_room_for_all_is_not_called_busy(document, own, others):
    assert "Busy machine" not in shown(_beside_others(document, own, others))


def test_all_is_not_well_beside_neighbours_or_drift(document):
    document["findings"] = []
    again = "measure again on a quiet machine"
    assert again not in shown(document)
    assert again in " ".join(shown(_beside_others(copy.deepcopy(document), 60.0, 140.0)).split())
    document["steps"]["drift"] = 0.34
    assert again in " ".join(shown(document).split())
