"""Ceilings: the cache, the child process, and one very small real measurement."""

import json
import os

import msgspec
import pytest

from stepscope.hardware import ceilings
from stepscope.hardware.ceiling_cache import (
    CEILING_NAMES,
    Ceiling,
    DeviceCeilings,
    cache_file,
    cache_folder,
    format_quantity,
    load_ceilings,
    save_ceilings,
)
from stepscope.hardware.ceiling_measurements import Repeats, matrix_size, summarise
from stepscope.record.errors import MissingExtra, StepscopeError

KEY = "NVIDIA H200 | 580.95 | torch 2.11.0"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def document(**changes):
    entry = {"value": 51.2, "spread": 0.01, "repeats": 9, "size": 8192}
    whole = {"schema": 1, "key": KEY, "ceilings": {"matmul_fp32_tflops": entry}}
    return whole | changes


def measured(**changes):
    return msgspec.convert(document(**changes), DeviceCeilings)


def test_what_was_saved_is_loaded(cache):
    save_ceilings(measured())
    assert load_ceilings(KEY) == measured()
    assert len(list(cache.iterdir())) == 1


def test_another_device_has_other_ceilings():
    save_ceilings(measured())
    assert load_ceilings(KEY + ".1") is None
    assert cache_file(KEY) != cache_file(KEY + ".1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        json.dumps(document(schema=0)),
        json.dumps(document(key="another")),
        json.dumps(document(ceilings={})),
        json.dumps(document(ceilings={"launch_us": 3})),
        json.dumps(document(ceilings={"launch_us": {"value": "3", "spread": 0}})),
        json.dumps(document(ceilings={"launch_us": {"value": float("nan"), "spread": 0}})),
        json.dumps(document(ceilings={"launch_us": {"value": -1, "spread": 0}})),
    ],
)
def test_a_corrupt_cache_counts_as_none(cache, text):
    cache.mkdir()
    cache_file(KEY).write_text(text)
    assert load_ceilings(KEY) is None


def test_bytes_that_are_no_text_count_as_none(cache):
    cache.mkdir()
    cache_file(KEY).write_bytes(b"\xff\xfe{")
    assert load_ceilings(KEY) is None


def full_disk(*_):
    raise OSError(28, "No space left on device")


def test_a_failed_save_leaves_the_old_file_alone(cache, monkeypatch):
    save_ceilings(measured())
    monkeypatch.setattr("pathlib.Path.replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        save_ceilings(measured(device="another"))
    assert load_ceilings(KEY) == measured()
    assert len(list(cache.iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_an_oserror(cache):
    cache.write_text("a file where the folder should be")
    with pytest.raises(OSError, match="cache"):
        save_ceilings(measured())


def test_where_the_cache_is():
    home = os.path.expanduser("~")
    assert str(cache_folder({"STEPSCOPE_CACHE": "/a", "XDG_CACHE_HOME": "/b"})) == "/a"
    assert str(cache_folder({"XDG_CACHE_HOME": "/b"})) == "/b/stepscope"
    assert str(cache_folder({})) == f"{home}/.cache/stepscope"


def test_matrices_grow_only_as_far_as_the_budget():
    assert matrix_size(1024, once_s=1.0, budget_s=0.5) == 1024
    assert matrix_size(1024, once_s=0.001, budget_s=0.5) == 2048
    assert matrix_size(2048, once_s=1e-6, budget_s=0.5) == 8192


def test_a_result_is_the_median_with_the_spread_of_the_middle():
    result = summarise(Repeats([0.5, 9.0], [1.0, 2.0, 3.0, 4.0, 50.0]), 7, lambda s: 12 / s)
    assert result.value == 4
    assert result.best == 24
    assert result.spread > 1
    assert (result.repeats, result.size) == (5, 7)
    assert summarise(Repeats([], [2.0]), 1, lambda s: s).spread == 0


def test_numbers_read_well():
    assert format_quantity(0.1951, "TFLOP/s") == ("195", "GFLOP/s")
    assert format_quantity(51.24, "TFLOP/s") == ("51.2", "TFLOP/s")
    assert format_quantity(4305, "GB/s") == ("4.30", "TB/s")
    assert format_quantity(2.349, "µs") == ("2.35", "µs")


def test_keys_name_device_and_torch():
    assert "torch" in ceilings.device_key("cpu")
    assert ceilings.device_key("cuda", 0) != ceilings.device_key("cpu")


@pytest.mark.launches
def test_a_small_real_measurement_on_the_cpu():
    heard = []
    only = ("launch_us", "matmul_fp32_tflops")
    result = ceilings.measure_ceilings("cpu", "key", heard.append, only, budget_s=0.01)
    assert set(result.ceilings) == set(only)
    assert all(entry.value > 0 for entry in result.ceilings.values())
    assert heard[0].names == ["matmul_fp32_tflops", "launch_us"]
    assert [line.name for line in heard[1:]] == heard[0].names
    save_ceilings(result)
    assert load_ceilings("key") == result


def test_without_torch_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(ceilings, "package_version", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'stepscope\[torch\]'"):
        ceilings.measure_ceilings("cpu", "key")


def child_that(code, monkeypatch, tmp_path):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{code}\n")
    script.chmod(0o755)
    monkeypatch.setattr(ceilings.sys, "executable", str(script))


@pytest.mark.launches
def test_a_child_that_dies_is_one_clear_error(monkeypatch, tmp_path):
    child_that("echo 'first'; echo 'no room' >&2; exit 3", monkeypatch, tmp_path)
    with pytest.raises(StepscopeError, match="exit code 3\\): no room"):
        ceilings.measure_ceilings("cpu", "key")


@pytest.mark.launches
def test_a_child_that_says_nothing_is_one_clear_error(monkeypatch, tmp_path):
    child_that("exit 0", monkeypatch, tmp_path)
    with pytest.raises(StepscopeError, match="no ceiling"):
        ceilings.measure_ceilings("cpu", "key")


@pytest.mark.launches
def test_one_failed_measurement_leaves_the_others(monkeypatch, tmp_path):
    lines = [
        ceilings.Plan(["a", "b"], "x", "2.13.0", 2, 0.0),
        ceilings.Failed("a", "out of memory"),
        ceilings.Measured("b", Ceiling(1.0, 0.0)),
    ]
    code = "\n".join(f"echo '{msgspec.json.encode(line).decode()}'" for line in lines)
    child_that(code, monkeypatch, tmp_path)
    result = ceilings.measure_ceilings("cpu", "key")
    assert result.failed == {"a": "out of memory"}
    assert list(result.ceilings) == ["b"]
    assert result.device == "x"


@pytest.mark.gpu
def test_every_ceiling_of_a_gpu():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    result = ceilings.measure_ceilings("cuda", "key", budget_s=0.1)
    assert result.failed == {}
    assert set(result.ceilings) <= set(CEILING_NAMES)
    pinned, pageable = (
        result.ceilings[f"h2d_{kind}_gb_per_s"].value for kind in ("pinned", "pageable")
    )
    assert pinned > pageable
