"""The noise of a machine, kept for the runs to come; each run holds what was known then."""

import json
from dataclasses import replace

import msgspec
import pytest
from compare_world import item, run, times

from stepscope.compare.document import compare_results
from stepscope.compare.sides import Side
from stepscope.compare.verdicts import remember_noise, stored_floor
from stepscope.hardware.ceiling_cache import cache_file
from stepscope.hardware.gpus import GpuInfo
from stepscope.hardware.machine import Cpu, Machine, describe_machine
from stepscope.hardware.noise_floors import (
    NoiseFloor,
    known_noise_floor,
    machine_key,
    save_group,
)
from stepscope.launch.observed_run import _initial_record
from stepscope.results.comparison import ResultKind

KEY = "Some CPU x 8"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_nothing_is_known_of_a_machine_at_first():
    assert known_noise_floor(KEY, "program train.py") is None


def test_what_three_processes_showed_is_known_afterwards():
    assert save_group(KEY, "program train.py", [10.0, 10.5, 11.0])
    found = known_noise_floor(KEY, "program train.py")
    assert found.processes == 3
    assert 0.05 < found.share < 0.5


def test_other_programs_tell_nothing_of_this_one():
    save_group(KEY, "program other.py", [10.0, 10.1, 10.2])
    assert known_noise_floor(KEY, "program train.py") is None


def test_two_processes_are_too_few_to_keep():
    assert not save_group(KEY, "program train.py", [10.0, 11.0])
    assert known_noise_floor(KEY, "program train.py") is None


def test_the_same_processes_told_twice_count_once():
    for _ in range(3):
        save_group(KEY, "program train.py", [10.0, 10.5, 11.0])
    assert known_noise_floor(KEY, "program train.py").processes == 3


@pytest.mark.parametrize("means", [[10.0, float("nan"), 11.0], [10.0, 0.0, 11.0]])
def test_times_that_are_none_are_not_kept(means):
    assert not save_group(KEY, "program train.py", means)


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"schema": 9}', '{"schema": 1, "groups": [3, {"thing": "x", "means_ms": ["a"]}]}'],
)
def test_a_file_that_cannot_be_trusted_counts_as_none(content):
    cache_file(KEY, "noise").parent.mkdir(parents=True)
    cache_file(KEY, "noise").write_text(content)
    assert known_noise_floor(KEY, "program train.py") is None


def test_a_cache_that_cannot_be_written_is_done_without(cache):
    cache.write_text("in the way")
    assert not save_group(KEY, "program train.py", [10.0, 10.5, 11.0])


def test_programs_are_not_named_in_the_cache():
    save_group(KEY, "program secret.py", [10.0, 10.5, 11.0])
    assert "secret" not in json.dumps(json.loads(cache_file(KEY, "noise").read_text()))


def test_a_gpu_has_noise_of_its_own():
    machine = Machine(cpu=Cpu(model="Some CPU", usable_cores=8), gpus=[GpuInfo(name="G")])
    assert machine_key(machine, "cpu") == KEY
    assert machine_key(machine, "cuda") == f"{KEY} | G | None"


def test_a_run_holds_what_three_earlier_ones_showed(tmp_path):
    earlier = run(run__program="/p/train.py")
    machine = describe_machine()
    sides = [replace(earlier, machine=machine, items=(item(times(10 + n)),)) for n in range(3)]
    remember_noise(sides)
    record = _initial_record("/elsewhere/train.py", (), tmp_path)
    (known,) = (one for one in record.noise if one.device == "cpu")
    assert known.processes == 3
    assert 0.1 < known.share < 1
    assert _initial_record("/p/other.py", (), tmp_path).noise is None


def test_the_larger_floor_of_both_sides_counts():
    quiet, noisy = (replace(run(), noise=NoiseFloor(share, 6)) for share in (0.02, 0.3))
    assert stored_floor([quiet], [noisy]).share == stored_floor([noisy], [quiet]).share == 0.3
    assert stored_floor([quiet], [run()]).share == 0.02
    assert stored_floor([run()], [run()]) is None


def test_runs_of_different_machines_share_no_floor():
    elsewhere = run(config__machine={"cpu": {"model": "Another"}})
    assert stored_floor([replace(run(), noise=NoiseFloor(0.02, 6))], [elsewhere]) is None


def test_runs_of_different_programs_are_no_processes_of_one_thing():
    remember_noise(tuple(run(10.0 + n, run__program=f"/p/{n}.py") for n in range(3)))
    assert known_noise_floor(run().machine_key, run().noise_key(run().items[0])) is None


def test_points_of_a_bench_lend_each_other_their_noise():
    several = (item(*(times(10 + n, n) for n in range(3)), key="a"), item(times(), key="b"))
    side = Side(kind=ResultKind.BENCH, name="b", items=several, machine=Machine())
    lone = replace(side, items=(item(times(), key="b"),))
    assert stored_floor([side], [lone]).processes == 3
    assert stored_floor([lone], [lone]) is None


def test_a_verdict_does_not_change_with_what_is_measured_later():
    base, other = run(10.0), run(11.5, seed=1)
    before = compare_results([base], [other])
    for n in range(200):
        means = [10.0, 10.0 + n / 10, 20.0]
        save_group(base.machine_key, base.noise_key(base.items[0]), means)
    assert known_noise_floor(base.machine_key, base.noise_key(base.items[0])).share > 0.5
    assert msgspec.json.encode(compare_results([base], [other])) == msgspec.json.encode(before)
