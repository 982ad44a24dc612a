"""The NVML wrapper, on a stand-in for the driver."""

import math
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from stepscope.hardware import gpus
from stepscope.hardware.gpus import Gpu, GpuInfo, count_other_processes, open_gpu, throttle_reasons
from stepscope.record.row_log import SAMPLE_COLUMNS

GPU_COLUMNS = {column for column in SAMPLE_COLUMNS if column.startswith("gpu_")}


class FakeNvml:
    """A driver of one GPU that answers what it was given and refuses the rest."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, **answers):
        for name, answer in answers.items():
            setattr(self, f"nvmlDeviceGet{name}", lambda handle, *args, answer=answer: answer)

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        raise RuntimeError("Not Supported")


def test_throttle_bits_become_words():
    assert throttle_reasons(0x004 | 0x020) == ["power cap", "thermal slowdown"]
    assert throttle_reasons(0x008 | 0x080) == ["hardware slowdown", "power brake"]


def test_idle_and_chosen_clocks_are_not_throttling():
    assert throttle_reasons(0) == []
    assert throttle_reasons(0x001 | 0x002 | 0x100) == []


def test_a_sample_has_every_gpu_column():
    gpu = Gpu(
        FakeNvml(
            UtilizationRates=SimpleNamespace(gpu=87, memory=3),
            MemoryInfo=SimpleNamespace(used=5 << 30, total=80 << 30),
            ClockInfo=1980,
            Temperature=61,
            CurrentClocksEventReasons=4,
            ComputeRunningProcesses=[],
            TotalEnergyConsumption=123_456,
        ),
        handle=None,
        index=0,
    )
    sample = gpu.sample()
    assert set(sample) == GPU_COLUMNS
    assert sample["gpu_percent"] == 87
    assert sample["gpu_memory_bytes"] == 5 << 30
    assert sample["gpu_energy_mj"] == 123_456
    assert sample["gpu_other_processes"] == 0
    assert math.isnan(sample["gpu_power_w"])


def test_a_gpu_that_answers_nothing_gives_nan_and_none():
    gpu = Gpu(FakeNvml(), handle=None, index=0)
    assert set(gpu.sample()) == GPU_COLUMNS
    assert all(map(math.isnan, gpu.sample().values()))
    assert replace(gpu.info(), driver=None) == GpuInfo(index=0)


def test_an_old_driver_knows_throttling_by_its_older_name():
    assert Gpu(FakeNvml(CurrentClocksThrottleReasons=64), None, 0).throttle() == 64


def test_facts_speak_plain_units():
    fake = FakeNvml(
        Name=b"NVIDIA H200",
        CudaComputeCapability=(9, 0),
        EnforcedPowerLimit=700_000,
        MigMode=(0, 0),
    )
    info = Gpu(fake, None, 0).info()
    assert info.name == "NVIDIA H200"
    assert info.compute_capability == "9.0"
    assert info.power_limit_w == 700
    assert info.mig is False


def test_own_processes_are_not_others():
    assert count_other_processes([10, 11, 12], {10, 12}, lambda pid: True) == 1
    assert count_other_processes([], {10}, lambda pid: True) == 0


def test_foreign_pid_numbers_leave_the_count_unknown():
    assert math.isnan(count_other_processes([90001], {10}, lambda pid: False))
    assert count_other_processes([10, 90001], {10}, lambda pid: False) == 1


def test_without_a_driver_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(gpus, "open_nvml", lambda: None)
    assert open_gpu(0) is None
    assert gpus.open_gpus() == []
    assert gpus.driver_version() is None


def test_without_the_package_there_is_no_nvml(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert gpus.open_nvml() is None


@pytest.mark.gpu
def test_a_real_gpu_answers():
    gpu = open_gpu(0)
    if gpu is None:
        pytest.skip("no NVIDIA GPU")
    sample = gpu.sample()
    assert set(sample) == GPU_COLUMNS
    assert sample["gpu_memory_bytes"] > 0
    assert gpu.info().memory_bytes > 1 << 30
