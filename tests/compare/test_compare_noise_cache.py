"""The noise of a machine, kept between comparisons."""

import json

import pytest
from compare_world import item, run, times

from stepscope.compare.sides import Side
from stepscope.compare.verdicts import remember_noise, stored_floor
from stepscope.hardware.ceiling_cache import cache_file
from stepscope.hardware.gpus import GpuInfo
from stepscope.hardware.machine import Cpu, Machine
from stepscope.hardware.noise_floors import known_noise_floor, machine_key, save_group
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
    assert found.same
    assert found.processes == 3
    assert 0.05 < found.share < 0.5


def test_other_programs_have_to_do_where_this_one_was_never_repeated():
    save_group(KEY, "program other.py", [10.0, 10.1, 10.2])
    assert not known_noise_floor(KEY, "program train.py").same


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


def test_three_runs_of_a_side_are_remembered_for_single_runs():
    remember_noise(tuple(run(10 + n / 10, seed=n) for n in range(3)))
    single = run(10.0)
    assert stored_floor((single, single))(single.items[0]).same


def test_runs_of_different_machines_share_no_floor():
    remember_noise(tuple(run(10 + n / 10, seed=n) for n in range(3)))
    elsewhere = run(config__machine={"cpu": {"model": "Another"}})
    assert stored_floor((run(), elsewhere))(run().items[0]) is None


def test_runs_of_different_programs_are_no_processes_of_one_thing():
    sides = tuple(run(10.0 + n, run__program=f"/p/{n}.py") for n in range(3))
    remember_noise(sides)
    assert stored_floor(sides[:1])(sides[0].items[0]) is None


def test_points_of_a_bench_are_remembered_each_on_its_own():
    several = (item(*(times(10 + n, n) for n in range(3)), key="a"), item(times(), key="b"))
    side = Side(kind=ResultKind.BENCH, name="b", items=several, machine=Machine())
    remember_noise((side,))
    floor = stored_floor((side,))
    assert floor(several[0]).same
    assert not floor(several[1]).same
