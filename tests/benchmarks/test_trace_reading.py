"""What benchmarks/trace_reading.py measures, and what it may claim."""

import gzip
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from plain import TRACES, quicker, read_plain

from stepscope.analyze.timeline.intervals import device_work, total
from stepscope.record.timeline import Timeline
from stepscope.trace.kineto.read import read_kineto

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[[str], ModuleType]]:
    """Imports the benchmark's modules by name; they are forgotten again."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))
    for name in set(sys.modules) - before:
        if name.startswith("_trace_") or name == "trace_reading":
            del sys.modules[name]


@dataclass(frozen=True)
class Repeated:
    """A trace, and the same written several times over."""

    once: Timeline
    often: Timeline
    times: int


@pytest.fixture(
    scope="module", params=quicker(["resnet18_b32_h200", "v100_ns_timestamps.pt.trace"])
)
def repeated(
    request: pytest.FixtureRequest,
    load: Callable[[str], Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Repeated:
    source = TRACES / f"{request.param}.json.gz"
    out = tmp_path_factory.mktemp("big") / "trace.json"
    times = load("_trace_big").write_big(source, out, 28)
    return Repeated(read_kineto(source), read_kineto(out), times)


def test_a_repeated_trace_has_every_event_as_often(repeated: Repeated) -> None:
    once, often = repeated.once, repeated.often
    assert repeated.times == 2
    assert len(often.device) == 2 * len(once.device)
    assert len(often.host) == 2 * len(once.host)
    assert len(often.memory) == 2 * len(once.memory)
    assert set(often.names) >= {name for name in once.names if "ProfilerStep" not in name}


def test_repetitions_do_not_overlap_and_keep_their_nanoseconds(repeated: Repeated) -> None:
    (once,), (often,) = device_work(repeated.once), device_work(repeated.often)
    assert total(often.busy) == 2 * total(once.busy)
    assert total(often.compute) == 2 * total(once.compute)


def test_each_repetition_has_its_own_launches_and_steps(repeated: Repeated) -> None:
    once, often = repeated.once, repeated.often
    assert len(np.unique(often.device.correlation)) == 2 * len(np.unique(once.device.correlation))
    waited = often.device.start - often.host.start[often.device.launch]
    usual = once.device.start - once.host.start[once.device.launch]
    assert np.array_equal(np.sort(waited), np.sort(np.tile(usual, 2)))
    numbers = [
        {name for name in timeline.names if name.startswith("ProfilerStep#")}
        for timeline in (once, often)
    ]
    assert len(numbers[1]) == 2 * len(numbers[0])


def test_the_compressed_trace_is_the_same(load: Callable[[str], Any], tmp_path: Path) -> None:
    plain = tmp_path / "trace.json"
    plain.write_bytes(b'{"traceEvents": []}')
    packed = load("_trace_big").write_gzip(plain)
    assert packed.name == "trace.json.gz"
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()


def test_a_source_that_is_laid_out_otherwise_is_refused(
    load: Callable[[str], Any], tmp_path: Path
) -> None:
    source = tmp_path / "compact.json.gz"
    source.write_bytes(gzip.compress(b'{"traceEvents":[{"ph":"X","ts":1,"dur":2}]}'))
    with pytest.raises(RuntimeError, match="not laid out"):
        load("_trace_big").write_big(source, tmp_path / "out.json", 1)


@pytest.mark.launches
def test_the_least_breakdown_agrees_with_the_timeline(load: Callable[[str], Any]) -> None:
    path = TRACES / "resnet18_b32_h200.json.gz"
    reading = load("_trace_measure").measure(sys.executable, "json", path, 60)
    found = reading["found"]
    (work,) = device_work(read_plain(path))
    assert found["device_events"] == len(work.events)
    assert found["busy_ms"] == pytest.approx(total(work.busy) / 1e6, rel=1e-4)
    assert found["compute_ms"] == pytest.approx(total(work.compute) / 1e6, rel=1e-4)


def test_the_least_breakdown_counts_overlaps_once(load: Callable[[str], Any]) -> None:
    rows = [("kernel", "a", 0, 10), ("gpu_memcpy", "m", 5, 10), ("kernel", "nccl", 20, 5)]
    events = [{"cat": c, "name": n, "ts": ts, "dur": dur} for c, n, ts, dur in rows]
    found = load("_trace_parsers").least_breakdown([*events, {"ph": "M"}])
    assert (found["busy_ms"], found["compute_ms"], found["idle_ms"]) == (0.020, 0.010, 0.005)
    assert load("_trace_parsers").least_breakdown([])["busy_ms"] == 0


@pytest.mark.launches
def test_a_reader_is_measured_in_a_process_of_its_own(load: Callable[[str], Any]) -> None:
    path = TRACES / "vllm_decode_cuda_graphs.json.gz"
    reading = load("_trace_measure").measure(sys.executable, "json", path, 60)
    assert reading["found"]["device_events"] == 434
    assert 0 < reading["load_s"] < reading["wall_s"]
    assert reading["peak_bytes"] >= reading["maxrss_bytes"] > 5e6


@pytest.mark.launches
def test_a_reader_that_is_not_installed_is_reported(load: Callable[[str], Any]) -> None:
    path = TRACES / "vllm_decode_cuda_graphs.json.gz"
    reading = load("_trace_measure").measure(sys.executable, "tracelens", path, 60)
    if "found" not in reading:
        assert reading["missing"] == "No module named 'TraceLens'"
        assert "peak_bytes" not in reading


@pytest.mark.launches
def test_a_reader_that_fails_is_reported_with_its_reason(
    load: Callable[[str], Any], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"traceEvents": [')
    reading = load("_trace_measure").measure(sys.executable, "json", broken, 60)
    assert reading["failed"].startswith("json.decoder.JSONDecodeError")


@pytest.mark.launches
def test_a_reader_beyond_its_limit_is_ended(load: Callable[[str], Any]) -> None:
    path = TRACES / "v100_train_2ranks_rank1.json.gz"
    reading = load("_trace_measure").measure(sys.executable, "json", path, 0.1)
    assert reading["over_s"] == 0.1
    assert reading["wall_s"] < 20


def case(stepscope: tuple[float, float], hta: dict[str, Any], alone: bool = False) -> Any:
    found = {"busy_ms": 2.0, "compute_ms": 1.0, "device_events": 3}
    ours = {"wall_s": stepscope[0], "peak_bytes": stepscope[1], "load_s": 0.5, "found": found}
    readings = [{"contender": "stepscope", **ours}, {"contender": "hta", **hta}]
    return {
        "source": "some_trace",
        "repetitions": 3,
        "format": "plain",
        "json_bytes": 400e6,
        "file_bytes": 400e6,
        "alone": alone,
        "rounds": 1,
        "readings": readings[:1] if alone else readings,
    }


SLOW = {"wall_s": 50.0, "peak_bytes": 2e9, "found": {"busy_ms": 2.0, "compute_ms": 1.0}}


@pytest.mark.parametrize(
    ("stepscope", "hta", "said"),
    [
        ((2.0, 1.9e8), SLOW, ["met", "met"]),
        ((2.1, 2e8), SLOW, ["missed", "missed"]),
        ((2.0, 1e8), {"missing": "No module named 'hta'"}, ["not measured", "met"]),
        ((2.0, 1e8), {"wall_s": 1.0, "failed": "TypeError"}, ["not measured", "met"]),
        ((2.0, 1e8), {"wall_s": 50.0, "peak_bytes": 2e9, "over_s": 50.0}, ["met", "met"]),
        (
            (9.0, 9e8),
            {"wall_s": 50.0, "peak_bytes": 2e9, "over_s": 50.0},
            ["not measured", "missed"],
        ),
    ],
)
def test_goals_against_hta_are_judged_only_on_what_was_measured(
    load: Callable[[str], Any], stepscope: tuple[float, float], hta: Any, said: list[str]
) -> None:
    goals = load("_trace_goals").goals_of(case(stepscope, hta))
    assert [goal["verdict"] for goal in goals] == said


@pytest.mark.parametrize(
    ("measured", "said"), [((7.9, 4.9e8), ["met", "met"]), ((8.0, 5e8), ["missed", "missed"])]
)
def test_the_large_trace_has_goals_of_its_own(
    load: Callable[[str], Any], measured: tuple[float, float], said: list[str]
) -> None:
    goals = load("_trace_goals").goals_of(case(measured, SLOW, alone=True))
    assert [goal["verdict"] for goal in goals] == said


@pytest.mark.parametrize("trouble", [{"failed": "ValueError"}, {"peak_bytes": 1, "over_s": 300.0}])
@pytest.mark.parametrize("alone", [True, False])
def test_goals_are_missed_where_stepscope_did_not_finish_a_round(
    load: Callable[[str], Any], trouble: dict[str, Any], alone: bool
) -> None:
    failing = case((1.0, 1e8), SLOW, alone)
    failing["readings"].append({"contender": "stepscope", "wall_s": 300.0, **trouble})
    goals = load("_trace_goals").goals_of(failing)
    assert [goal["verdict"] for goal in goals] == ["missed", "missed"]


def test_the_table_says_times_multiples_troubles_and_goals(load: Callable[[str], Any]) -> None:
    tables = load("_trace_table")
    fine = case((2.0, 2e8), SLOW)
    fine["readings"] += [
        {"contender": "tracelens", "wall_s": 0.1, "missing": "No module named 'TraceLens'"},
        {"contender": "json", "wall_s": 300.0, "peak_bytes": 1e9, "over_s": 300.0},
    ]
    document = {
        "date": "2026-01-01",
        "command": "python benchmarks/trace_reading.py",
        "machine": {"cpu": {"model": "Some CPU", "usable_cores": 2}},
        "versions": {"stepscope": "0.1", "commit": "abc", "readers": {"hta": {"pandas": "3"}}},
        "cases": [fine | {"goals": load("_trace_goals").goals_of(fine)}],
    }
    text = tables.table(json.loads(json.dumps(document)))
    assert "| hta | – | – | 50.00 s | 50.00–50.00 | 8 | 2000 MB | 25.0× | 10.0× |" in text
    assert "> 300.00 s" in text
    assert "tracelens: not installed (No module named 'TraceLens')." in text
    assert "json: ended after 300 s, unfinished." in text
    assert "Goal at least 25 times as fast as HTA: **met** (25.0)." in text


def test_interpreters_are_given_for_all_or_by_name(load: Callable[[str], Any]) -> None:
    options = load("_trace_options")
    assert options.interpreters(["hta=/a/python"]) == {"hta": "/a/python"}
    both = options.interpreters(["/b/python", "hta=/a/python"])
    assert (both["json"], both["hta"]) == ("/b/python", "/a/python")
    for wrong in (["nobody=/a/python"], ["/a/python", "/b/python"]):
        with pytest.raises(ValueError, match="NAME="):
            options.interpreters(wrong)


def test_results_name_no_folder_of_the_machine(load: Callable[[str], Any]) -> None:
    shown = load("_trace_options").without_folders
    assert shown("hta=/home/me/venv/bin/python") == "hta=…/python"
    assert shown("/home/me/out.json") == "…/out.json"
    assert shown("--rounds") == "--rounds"


def test_readers_take_turns_and_one_that_cannot_is_asked_once(
    load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    main = load("trace_reading")
    asked: list[str] = []

    def measure(python: str, name: str, path: Path, limit_s: float) -> dict[str, Any]:
        asked.append(name)
        able = {"peak_bytes": 1} if name != "hta" else {"missing": "no"}
        return {"contender": name, "wall_s": 1.0, **able}

    monkeypatch.setattr(main, "measure", measure)
    options = type("Options", (), {"rounds": 2, "python": {}, "limit": 1.0})
    trace = tmp_path / "trace.json"
    trace.write_bytes(b"{}")
    found = list(main.readings(options, trace, ["stepscope", "hta", "json"]))
    assert asked == ["stepscope", "hta", "json", "json", "stepscope"]
    assert [reading["round"] for reading in found] == [1, 1, 1, 2, 2]
