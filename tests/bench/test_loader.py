"""The DataLoader grid: its settings, its clock, its errors, and what is made of the numbers."""

import json
import sys
from pathlib import Path

import pytest
from msgspec import convert, to_builtins
from msgspec.structs import replace
from plain_json import in_json

import stepscope
from stepscope.bench.loader_grid import (
    LoaderSetting,
    dataloader_line,
    loader_request,
    loader_result,
    measured_settings,
    setting_points,
    worker_counts,
)
from stepscope.bench.record import ProcessRecord
from stepscope.cli.main import main
from stepscope.record.errors import UsageError
from stepscope.workloads.measure.loader import deliver, ms_per_round

DATA = """
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Digits(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.zeros(3, 4), index

class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.zeros(7, 2))

class Late(Digits):
    def __getitem__(self, index):
        if index == 7:
            raise ValueError("no such digit")
        return super().__getitem__(index)

class Refused(Digits):
    def __getitem__(self, index):
        raise OSError("the disk is gone")

def raises():
    raise RuntimeError("not today")

def odd():
    return [object(), object()]

def joined():
    return DataLoader(odd(), collate_fn=lambda items: torch.zeros(len(items)))

digits = Digits()
number = 3
empty = []
"""


def at(words):
    """Where words stand in the user's file."""
    return f"digits.py:{DATA[: DATA.index(words)].count(chr(10)) + 1}"


def request(**asked):
    usual = {
        "source": "resnet18",
        "device": "cpu",
        "batches": (8,),
        "workers": (0, 2),
        "pins": (False,),
        "prefetches": (2,),
        "rounds": 1,
        "timeout_s": 60.0,
        "seconds": 0.5,
    }
    return loader_request(**{**usual, **asked})


@pytest.mark.parametrize(
    ("cores", "workers"),
    [
        (1, (0, 1)),
        (2, (0, 1, 2)),
        (2.5, (0, 1, 2)),
        (0.5, (0, 1)),
        (16, (0, 2, 4, 8, 16)),
        (128, (0, 4, 8, 16, 32)),
    ],
)
def test_workers_tried_follow_the_cores_that_may_be_used(cores, workers):
    assert worker_counts(cores) == workers


def test_a_grid_on_a_gpu_is_the_product_of_its_lists():
    asked = request(device="cuda", batches=(8, 16), pins=(False, True), prefetches=(2, 4))
    settings, notes = setting_points(asked)
    assert len(settings) == 2 * (2 + 2 * 2)
    assert LoaderSetting(16, 2, True, 4) in settings
    assert notes == ["prefetch left out with 0 workers: nothing is fetched ahead"]


def test_pinning_without_a_gpu_is_left_out_and_said():
    settings, notes = setting_points(request(pins=(False, True)))
    assert list(settings) == [LoaderSetting(8), LoaderSetting(8, 2, False, 2)]
    assert notes == ["pinning left out: it only helps copies to a GPU"]


def test_the_default_loader_is_measured_even_where_it_was_not_asked_for():
    settings, notes = setting_points(request(device="cuda", workers=(4,), pins=(True,)))
    assert list(settings) == [LoaderSetting(8), LoaderSetting(8, 4, True, 2)]
    assert notes == ["the default loader (0 workers, not pinned) is measured as the baseline"]


def test_a_point_is_the_command_line_of_its_child(tmp_path):
    settings, _ = setting_points(request(device="cuda", pins=(True,), decode_ms=1.5, resize=None))
    command = settings[LoaderSetting(8, 2, True, 2)].command(tmp_path / "m.json")
    assert command[0] == "stepscope.workloads.load"
    words = " ".join(command)
    for part in ("--model resnet18", "--batch 8", "--device cuda", "--workers 2", "--pin on"):
        assert part in words
    assert "--prefetch 2" in words
    assert "--decode-ms 1.5" in words
    assert "--resize" not in words
    assert "--prefetch" not in settings[LoaderSetting(8)].command(tmp_path / "m.json")


class Bursts:
    """A loader whose workers bring a batch each, all at once, every `period` seconds."""

    def __init__(self, workers, period, ahead):
        self.now = 0.0
        self.workers, self.period, self.ahead = workers, period, ahead
        self.taken = 0
        self.paused = 0.0

    def __iter__(self):
        return self

    def __next__(self):
        ready = self.period * (self.taken // self.workers + 1)
        behind = self.paused if self.taken >= self.workers else 0.0
        stock = min(behind / self.period * self.workers, self.ahead)
        self.now = max(self.now, ready + behind - stock / self.workers * self.period)
        self.taken += 1
        return self.taken


def test_throughput_is_of_whole_rounds_of_all_workers():
    loader = Bursts(workers=4, period=0.1, ahead=8)
    found = deliver(
        loader, lambda _: 16, lambda: None,
        workers=4, prefetch=2, seconds=1.0, clock=lambda: loader.now,
    )  # fmt: skip
    assert found.first_s == pytest.approx(0.1)
    assert found.warmup == 16
    assert found.calls % 4 == 0
    assert found.calls >= 3 * 8
    assert found.samples / found.elapsed_s == pytest.approx(16 * 4 / 0.1)


def test_batches_that_gather_before_the_section_are_not_counted():
    loader = Bursts(workers=2, period=0.1, ahead=4)

    def pause():
        loader.now += 0.5
        loader.paused = 0.5

    found = deliver(
        loader, lambda _: 1, lambda: None,
        workers=2, prefetch=2, seconds=1.0, on_first=pause, clock=lambda: loader.now,
    )  # fmt: skip
    assert found.samples / found.elapsed_s == pytest.approx(2 / 0.1, rel=1e-6)


def test_a_slow_loader_is_measured_until_patience_ends():
    loader = Bursts(workers=1, period=0.5, ahead=8)
    found = deliver(
        loader, lambda _: 1, lambda: None,
        workers=1, prefetch=8, seconds=0.2, clock=lambda: loader.now,
    )  # fmt: skip
    assert found.calls == 2
    assert found.elapsed_s == pytest.approx(1.0)


def test_the_series_is_of_rounds_and_never_long():
    assert ms_per_round([0.0, 0.2, 0.0, 0.4], workers=2) == pytest.approx([100, 200])
    assert ms_per_round([0.1] * 5, workers=0) == pytest.approx([100] * 5)
    assert len(ms_per_round([0.1] * 4000, workers=2, most=100)) <= 100


def record(setting, point, rate, status="ok", number=1):
    measured = {
        "mode": "load", "samples": round(rate), "elapsed_s": 1.0, "calls": 10, "first_s": 0.2,
        "p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0, "series_ms": [100.0] * 10,
        "rss_bytes": 1 << 20, "cores": 1.5, "device_name": None,
        "dataset": {"kind": "Digits", "samples": 10, "sample_bytes": 1000},
    }  # fmt: skip
    made = {
        "key": point.key(),
        "point": to_builtins(point),
        "round": number,
        "status": status,
        "why": None if status == "ok" else "no room",
        "measured": measured if status == "ok" else None,
    }
    return convert(made, ProcessRecord)


def summed(rates, **asked):
    settings, _ = setting_points(request(**asked))
    records = []
    for (setting, point), rate in zip(settings.items(), rates, strict=True):
        if rate is not None:
            status = rate if isinstance(rate, str) else "ok"
            records.append(record(setting, point, 0 if status != "ok" else rate, status))
    found = measured_settings(settings, records)
    return in_json((list(found), loader_result(found, records, 8)))


def test_the_simplest_within_five_percent_is_named_beside_the_best():
    found, told = summed([100, 980, 960, 1000], workers=(0, 2, 4, 8))
    assert [point["samples_per_s"] for point in found] == [100, 980, 960, 1000]
    assert told["best"]["workers"] == 8
    assert told["simplest"]["workers"] == 2
    assert told["default"]["workers"] == 0
    assert told["speedup"]["against"] == "default"
    assert told["line"] == (
        "DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)"
    )


def test_the_best_of_each_batch_is_told_too():
    _, told = summed([100, 50, 300, 150], batches=(8, 16))
    assert [one["best"]["workers"] for one in told["by_batch"]] == [0, 0]
    assert told["best"]["batch"] == 16
    assert told["speedup"] is None
    assert told["line"] == "DataLoader(dataset, batch_size=16, shuffle=True)"


def test_failures_and_what_is_missing_are_points_with_nulls():
    found, told = summed([100, "failed", None], workers=(0, 2, 4))
    assert [point["status"] for point in found] == ["ok", "failed", "missing"]
    assert found[1]["why"] == "no room"
    assert found[1]["samples_per_s"] is found[2]["samples_per_s"] is None
    assert told["best"]["workers"] == 0
    assert found[0]["mb_per_s"] == pytest.approx(0.1)
    assert found[0]["peak_memory_bytes"] == 1 << 20
    assert found[0]["unstable"] is False


def test_rounds_that_differ_make_a_setting_unstable():
    settings, _ = setting_points(request(workers=(0,)))
    ((setting, point),) = settings.items()
    records = [record(setting, point, 100), record(setting, point, 140, number=2)]
    (found,) = in_json(measured_settings(settings, records))
    assert found["samples_per_s"] == 120
    assert (found["samples_per_s_low"], found["samples_per_s_high"]) == (100, 140)
    assert found["unstable_why"] == "rounds differ by 33%"


def test_nothing_that_worked_gives_no_advice():
    _, told = summed(["failed", "failed"])
    assert told["best"] is told["line"] is told["speedup"] is None


def test_a_line_says_what_is_not_the_default():
    assert dataloader_line(LoaderSetting(4, 3, True, 8)) == (
        "DataLoader(dataset, batch_size=4, shuffle=True, num_workers=3, pin_memory=True, "
        "prefetch_factor=8, persistent_workers=True)"
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits.py").write_text(DATA)
    return tmp_path


@pytest.fixture
def load(folder, capsys, monkeypatch):
    """The child program, run here: its exit code, what it measured and its last line."""
    pytest.importorskip("torch")
    from stepscope.workloads.load import load as body
    from stepscope.workloads.measure.program import run_program
    from stepscope.workloads.models.from_user import one_line_error

    def load(name):
        words = ["--model", f"digits.py:{name}", "--batch", "4", "--seconds", "0.02"]
        words += ["--device", "cpu", "--measure", "out.json"]
        monkeypatch.setattr(sys, "path", list(sys.path))
        code = run_program("load", "", body, words, one_line_error)
        said = capsys.readouterr().err.splitlines()
        written = folder / "out.json"
        found = json.loads(written.read_text()) if written.exists() else None
        return code, found, said[-1] if said else ""

    return load


@pytest.mark.parametrize("name", ["digits", "Digits", "Stream", "joined"])
def test_a_dataset_a_class_a_stream_and_a_loader_can_be_loaded(load, name):
    code, measured, _ = load(name)
    assert code == 0
    assert measured["error"] is None
    assert measured["samples"] > 0
    assert measured["elapsed_s"] >= 0.02
    assert measured["rss_bytes"] > 0
    assert measured["started_ns"] < measured["ended_ns"]
    assert measured["dataset"]["samples"] == {"Stream": None, "joined": 2}.get(name, 10)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "number",
            "int is not a Dataset (no __getitem__): name a Dataset or a function that returns one",
        ),
        ("empty", "the dataset is empty"),
        ("raises", f"RuntimeError: not today ({at('not today')})"),
        ("Refused", f"the first sample fails: OSError: the disk is gone ({at('the disk')})"),
    ],
)
def test_what_cannot_be_loaded_at_all_is_one_line(load, name, text):
    code, measured, said = load(name)
    assert (code, measured) == (2, None)
    assert said == f"load: digits.py:{name}: {text}"


def test_samples_that_make_no_batch_are_one_line(load):
    code, _, said = load("odd")
    assert code == 2
    assert said.startswith(
        "load: digits.py:odd: samples cannot be collated: TypeError: default_collate"
    )


def test_a_sample_that_fails_later_fails_this_setting(load, folder):
    with pytest.raises(ValueError, match="no such digit"):
        load("Late")
    assert json.loads((folder / "out.json").read_text())["error"] == {
        "kind": "failed",
        "text": f"ValueError: no such digit ({at('no such digit')})",
    }


def test_what_a_worker_raised_is_told_with_its_place():
    from stepscope.workloads.models.from_user import one_line_error

    text = (
        "Caught KeyError in DataLoader worker process 1.\nOriginal Traceback (most recent call"
        ' last):\n  File "/home/me/data.py", line 12, in __getitem__\n  File "/x/site-packages/'
        "torch/y.py\", line 3, in get\nKeyError: 'a.png'\n"
    )
    assert one_line_error(KeyError(text.replace("'", ""))).startswith("KeyError")
    assert one_line_error(RuntimeError(text)) == "KeyError: 'a.png' (data.py:12)"


@pytest.fixture
def run(capsys, folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(stepscope.__file__).parents[1]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(["bench", "loader", *arguments])
        said = capsys.readouterr()
        return caught.value.code or 0, said.out, said.err

    return run


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["resnet81"], "no workload named resnet81: did you mean resnet18?"),
        (["digits.py:nothing"], "has no nothing"),
        (["gone.py:digits"], "no file gone.py"),
        (["--batch", "0"], "--batch 0: use whole numbers of 1 or more"),
        (["--workers", "2,x"], "--workers 2,x: use whole numbers of 0 or more"),
        (["--prefetch", "0"], "--prefetch 0: use whole numbers of 1 or more"),
        (["--csv", "gone/x.csv"], "cannot write gone/x.csv"),
        (["--pin", "yes"], "--pin yes: use off, on or off,on"),
        (["digits.py:digits", "--decode-ms", "2"], "--decode-ms is for built-in workloads"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, arguments, text):
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert text in err


@pytest.mark.slow
@pytest.mark.launches
def test_a_grid_of_ones_own_dataset_runs_and_is_not_measured_twice(run, folder):
    pytest.importorskip("torch")
    words = ["digits.py:digits", "--batch", "4", "--workers", "1", "--prefetch", "2"]
    words += ["--device", "cpu", "--pin", "off", "--seconds", "0.1", "--out", "results", "--json"]
    code, out, err = run(*words)
    assert code == 0, err
    document = json.loads(out)
    assert document["schema"] == "stepscope.bench/1"
    assert [(p["workers"], p["status"]) for p in document["points"]] == [(0, "ok"), (1, "ok")]
    assert all(p["samples_per_s"] > 0 for p in document["points"])
    assert all(p["first_batch_ms"] > 0 for p in document["points"])
    assert document["loader"]["dataset"]["kind"] == "Digits"
    assert document["loader"]["line"].startswith("DataLoader(dataset, batch_size=4")
    assert "2/2  batch 4, workers 1, prefetch 2: " in err
    kept = (folder / "results" / "records.jsonl").read_bytes()
    code, again, err = run(*words)
    assert code == 0
    assert "resuming in results: 2 measured before" in err
    assert json.loads(again)["points"] == document["points"]
    assert (folder / "results" / "records.jsonl").read_bytes() == kept


def test_a_source_that_refuses_is_not_tried_with_every_setting(folder, monkeypatch):
    from stepscope.bench import run as grids
    from stepscope.bench.run import open_bench_folder

    asked = request(workers=(0, 2, 4))
    settings, _ = setting_points(asked)
    tried = []

    def measure(point, *_):
        tried.append(point)
        return replace(record(None, point, 0, "failed"), exit_code=2, why="int is not a Dataset")

    with (
        open_bench_folder(folder / "out", asked, {}, False, folder) as results,
        pytest.raises(UsageError, match="int is not a Dataset"),
    ):
        grids.run_grid(asked, results, lambda _: None, measure, list(settings.values()))
    assert len(tried) == 1
