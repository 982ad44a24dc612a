"""Records summed up: one record per point, nothing invented where something is missing."""

import json

import pytest
from measured import MACHINE, failure, measured, record
from plain_json import in_json

from stepscope.bench import summary
from stepscope.bench.grid import BenchRequest, Point
from stepscope.bench.machine import matmul_ceilings
from stepscope.bench.results import MemoryStudy
from stepscope.bench.summary import bench_result
from stepscope.hardware.ceiling_cache import Ceiling, DeviceCeilings
from stepscope.record.errors import StepscopeError

TRAIN = Point.of("mlp", "train", 4, "cpu")
FIXED = Point.of("mlp", "train", 4, "cpu", ("amp=bf16",))
REQUESTED = BenchRequest(models=("mlp",), modes=("train",), devices=("cpu",), batches=(4,))
KEYS = {
    *("key", "model", "mode", "batch", "device", "fixes", "variant", "status", "why"),
    *("not_applied", "rounds", "samples_per_s", "batches_per_s", "mean_ms", "mean_low_ms"),
    *("mean_high_ms", "std_ms", "p50_ms", "p95_ms", "p99_ms", "epoch_s", "loss", "score"),
    *("score_name", "steps", "time_to_score_s", "first_token_ms", "token_ms", "tokens_per_s"),
    *("peak_memory_bytes", "gpu_busy", "flops_per_sample", "tflops_per_s", "mfu", "arithmetic"),
    *("energy_j_per_sample", "carbon_g_per_million", "cost_per_million", "first_calls_s"),
    *("clock", "unstable", "unstable_why", "notes", "speedup"),
}


def summarize(*arguments):
    return in_json(list(summary.summarize(*arguments)))


def point(*records, request=REQUESTED, ceilings=None):
    """The only point of the records."""
    (found,) = summarize(records, request, ceilings)
    return found


def test_every_point_has_every_key_and_json_takes_it():
    found = summarize([record(TRAIN), failure(FIXED)], REQUESTED)
    assert [set(one) >= KEYS for one in found] == [True, True]
    json.dumps(found, allow_nan=False)


def test_throughput_is_all_samples_over_all_time():
    found = point(record(TRAIN, 1, 10.0), record(TRAIN, 2, 30.0))
    assert found["samples_per_s"] == pytest.approx(800 / 4.0)
    assert found["batches_per_s"] == pytest.approx(200 / 4.0)
    assert found["rounds"] == 2
    assert found["p50_ms"] == pytest.approx(20, rel=0.5)


def test_the_mean_lies_within_its_interval():
    found = point(*(record(TRAIN, n, ms) for n, ms in enumerate((10.0, 10.1, 9.9), start=1)))
    assert found["mean_low_ms"] < found["mean_ms"] < found["mean_high_ms"]
    assert found["mean_ms"] == pytest.approx(10, rel=0.01)
    assert not found["unstable"]


def test_what_failed_is_a_point_without_numbers():
    found = point(failure(TRAIN, status="out_of_memory", why="3 GiB too much"))
    assert (found["status"], found["why"]) == ("out_of_memory", "3 GiB too much")
    numbers = KEYS - {
        *("key", "model", "mode", "batch", "device", "fixes", "variant", "status", "why"),
        *("not_applied", "rounds", "unstable", "notes"),
    }
    assert {found[name] for name in numbers} == {None}
    assert found["rounds"] == 0
    assert found["unstable"] is False


def test_a_later_failure_does_not_undo_what_was_measured():
    found = point(record(TRAIN, 1), failure(TRAIN, 2, status="timed_out", why="too slow"))
    assert (found["status"], found["rounds"]) == ("ok", 1)
    assert found["notes"] == ["process 2 left out: too slow"]


def test_a_variant_is_held_against_the_first_of_its_kind():
    base = [record(TRAIN, n, 10 + 0.01 * n) for n in (1, 2, 3)]
    fixed = [record(FIXED, n, 5 + 0.01 * n) for n in (1, 2, 3)]
    one, other = summarize([*base, *fixed], REQUESTED)
    assert one["speedup"] is None
    gain = other["speedup"]
    assert gain["against"] == "none"
    assert gain["ratio"] == pytest.approx(2, rel=0.02)
    assert gain["low"] < gain["ratio"] < gain["high"]
    assert gain["verdict"] == "FASTER"


def test_a_variant_of_another_batch_is_not_compared():
    other = Point.of("mlp", "train", 8, "cpu", ("amp=bf16",))
    found = summarize([record(TRAIN), record(other)], REQUESTED)
    assert [one["speedup"] for one in found] == [None, None]


def test_a_fix_that_changes_the_batch_is_compared_per_sample():
    grown = Point.of("mlp", "train", 4, "cpu", ("batch=16",))
    slow = measured(grown, 20.0) | {"samples": 1600}
    found = summarize([record(TRAIN, 1, 10.0), record(grown, measured=slow)], REQUESTED)
    assert found[1]["speedup"]["ratio"] == pytest.approx(2, rel=0.01)


def test_throughput_decides_also_where_latency_was_measured_apart():
    base, fixed = (Point.of("mlp", "infer", 4, "cpu", fixes) for fixes in ((), ("amp=bf16",)))
    quick = measured(fixed, 2.5, series_ms=[5.0] * 100, throughput_ms=[2.5] * 100)
    slow = measured(base, 10.0, throughput_ms=[10.0] * 100)
    one, other = summarize([record(base, measured=slow), record(fixed, measured=quick)], REQUESTED)
    assert other["mean_ms"] == pytest.approx(5)
    rates = other["samples_per_s"] / one["samples_per_s"]
    assert other["speedup"]["ratio"] == pytest.approx(rates, rel=0.01)


def test_nothing_is_compared_with_a_failure():
    found = summarize([failure(TRAIN), record(FIXED)], REQUESTED)
    assert found[1]["speedup"] is None


def test_training_tells_its_epoch_loss_and_score():
    learnt = measured(
        TRAIN,
        train_samples=4000,
        final_loss=0.5,
        final_score=0.9,
        score_name="accuracy",
        steps=110,
        time_to_score_s=None,
    )
    reached = learnt | {"time_to_score_s": 3.0}
    found = point(record(TRAIN, 1, measured=reached), record(TRAIN, 2, measured=reached))
    assert found["epoch_s"] == pytest.approx(4000 / 400)
    assert (found["loss"], found["score"], found["steps"]) == (0.5, 0.9, 110)
    assert found["time_to_score_s"] == 3.0
    missed = point(record(TRAIN, 1, measured=reached), record(TRAIN, 2, measured=learnt))
    assert missed["time_to_score_s"] is None


def test_generation_tells_its_tokens():
    asked = Point.of("gpt:tiny", "generate", 2, "cpu")
    told = measured(asked, first_token_ms=[8.0, 10.0], token_ms=[2.0, 4.0], tokens_per_s=600.0)
    found = point(record(asked, measured=told))
    assert (found["first_token_ms"], found["token_ms"], found["tokens_per_s"]) == (9, 3, 600)
    assert found["epoch_s"] is None


def test_sequences_have_tokens_per_second_too():
    asked = Point.of("gpt:tiny", "train", 4, "cpu")
    found = point(record(asked, measured=measured(asked, tokens_per_sample=128)))
    assert found["tokens_per_s"] == pytest.approx(400 * 128)


def test_mfu_is_the_share_of_what_products_reach_in_the_same_arithmetic():
    ceilings = {"cpu": {"fp32": 1.6, "bf16": 9.0}, "cuda": {"fp32": 50.0}}
    found = point(record(TRAIN), ceilings=ceilings)
    assert found["tflops_per_s"] == pytest.approx(2e9 * 400 / 1e12)
    assert found["mfu"] == pytest.approx(0.5)
    strange = record(TRAIN, measured=measured(TRAIN, arithmetic="fp16"))
    assert point(strange, ceilings=ceilings)["mfu"] is None
    unknown = record(TRAIN, measured=measured(TRAIN, flops_per_sample=None, flops_why_not="sparse"))
    found = point(unknown, ceilings=ceilings)
    assert (found["mfu"], found["tflops_per_s"]) == (None, None)
    assert found["notes"] == ["FLOPs not counted: sparse"]


def test_energy_carbon_and_cost_per_sample():
    asked = BenchRequest(
        models=("mlp",),
        modes=("train",),
        devices=("cuda",),
        price_per_hour=3.6,
        carbon_intensity=360.0,
    )
    used = [record(TRAIN, n, machine=MACHINE | {"energy_j": j}) for n, j in ((1, 100.0), (2, None))]
    found = point(*used, request=asked)
    assert found["energy_j_per_sample"] == pytest.approx(100 / 400)
    assert found["carbon_g_per_million"] == pytest.approx(0.25e6 / 3.6e6 * 360)
    assert found["cost_per_million"] == pytest.approx(3.6 / 3600 / 400 * 1e6)
    bare = point(record(TRAIN), request=asked)
    assert bare["energy_j_per_sample"] is bare["carbon_g_per_million"] is None


def test_an_unsettled_or_uneven_series_is_unstable():
    unsettled = measured(TRAIN)
    unsettled["warmup"] = {**unsettled["warmup"], "settled": False}
    found = point(record(TRAIN, measured=unsettled))
    assert found["unstable"]
    assert "warming up" in found["unstable_why"]
    apart = point(record(TRAIN, 1, 10.0), record(TRAIN, 2, 15.0))
    assert "processes differ" in apart["unstable_why"]


def test_throttling_and_busy_neighbours_are_noted_once():
    busy = MACHINE | {"throttle": ["thermal slowdown"], "other_processes": 2, "other_cores": 1e6}
    found = point(record(TRAIN, 1, machine=busy), record(TRAIN, 2, machine=busy))
    assert found["notes"] == [
        "throttled: thermal slowdown",
        "other processes used the GPU",
        "other processes kept the CPU busy",
    ]


def test_fixes_that_took_hold_of_nothing_are_named():
    became = [
        {"name": "amp", "state": "applied", "reasons": []},
        {"name": "pin", "state": "not applicable", "reasons": ["no loader"]},
    ]
    assert point(record(FIXED, fixes=became))["not_applied"] == [
        {"name": "pin", "why": "no loader"}
    ]


def test_the_document_names_machine_versions_request_and_noise():
    records = [record(TRAIN, 1, 10.0), record(TRAIN, 2, 10.1)]
    found = bench_result(REQUESTED, records, {}, "stepscope bench mlp", "2026-01-01", ["a note"])
    found = json.loads(found.json_text())
    assert found["schema"] == "stepscope.bench/1"
    assert found["machine"]["cpu"]
    assert found["versions"]["stepscope"]
    assert found["request"]["models"] == ["mlp"]
    assert found["request"]["variants"] == [{"label": "none", "fixes": [], "roles": []}]
    assert 0 < found["noise_floor"] < 1
    assert [one["key"] for one in found["points"]] == [TRAIN.key()]
    assert found["notes"] == ["a note"]
    json.dumps(found, allow_nan=False)


def test_a_document_without_points_is_whole():
    study = MemoryStudy(model="mlp", batch=4, device="cpu", rows=())
    found = json.loads(bench_result(REQUESTED, [], {}, "", "", study=study).json_text())
    assert (found["points"], found["noise_floor"]) == ([], None)
    assert found["study"]["name"] == "memory"
    assert "loader" not in found


def test_ceilings_known_before_are_not_measured_again(monkeypatch):
    entries = {"matmul_fp32_tflops": Ceiling(2.0, 0.1), "launch_us": Ceiling(3.0, 0.1)}
    known = DeviceCeilings(key="", ceilings=entries)
    monkeypatch.setattr("stepscope.hardware.ceiling_cache.load_ceilings", lambda key: known)
    told = []
    assert matmul_ceilings(["cpu"], told.append) == ({"cpu": {"fp32": 2.0}}, [])
    assert told == []


def test_ceilings_not_known_are_measured_once_and_kept(monkeypatch):
    made = DeviceCeilings(key="", ceilings={"matmul_bf16_tflops": Ceiling(4.0, 0.1)})
    kept = []
    monkeypatch.setattr("stepscope.hardware.ceiling_cache.load_ceilings", lambda key: None)
    monkeypatch.setattr("stepscope.hardware.ceilings.measure_ceilings", lambda device, key: made)
    monkeypatch.setattr("stepscope.hardware.ceiling_cache.save_ceilings", kept.append)
    told = []
    assert matmul_ceilings(["cpu"], told.append) == ({"cpu": {"bf16": 4.0}}, [])
    assert kept == [made]
    assert "measuring the ceilings of cpu" in told[0]


def test_ceilings_that_cannot_be_measured_are_a_note(monkeypatch):
    def broken(device, key):
        raise StepscopeError("the device is gone")

    monkeypatch.setattr("stepscope.hardware.ceiling_cache.load_ceilings", lambda key: None)
    monkeypatch.setattr("stepscope.hardware.ceilings.measure_ceilings", broken)
    found, notes = matmul_ceilings(["cpu"], lambda text: None)
    assert found == {"cpu": {}}
    assert notes == ["no MFU on cpu: the device is gone"]
