"""What can be measured, said from a machine's description."""

import copy

import msgspec
import pytest

from stepscope.hardware.capabilities import capabilities, cautions
from stepscope.hardware.ceiling_cache import DeviceCeilings
from stepscope.hardware.machine import Machine

MACHINE = {
    "cpu": {"governor": None, "load_average": (0.5, 0.5, 0.5), "usable_cores": 8},
    "gpus": [
        {
            "index": 0,
            "mig": False,
            "energy_counter": True,
            "processes": 0,
            "pcie_width": 16,
            "pcie_width_max": 16,
        }
    ],
    "driver": "580.95",
    "torch": {"version": "2.11.0", "cuda": "13.0"},
    "packages": {"py-spy": "0.4", "memray": "1.15"},
    "tools": {"nsys": "/bin/nsys", "ncu": "/bin/ncu", "py-spy": "/bin/py-spy", "g++": "/bin/g++"},
    "counters_need_root": False,
    "is_root": False,
}


@pytest.fixture
def machine():
    return copy.deepcopy(MACHINE)


def able(machine):
    return capabilities(msgspec.convert(machine, Machine))


def minded(machine, ceilings=None):
    found = ceilings and msgspec.convert({"key": "", **ceilings}, DeviceCeilings)
    return cautions(msgspec.convert(machine, Machine), found)


def told(machine):
    return {capability.what: capability for capability in able(machine)}


def test_a_complete_machine_can_measure_everything(machine):
    assert all(capability.ok for capability in able(machine))
    assert minded(machine) == []


def test_without_torch_each_line_says_how_to_get_it(machine):
    machine["torch"] = None
    for what in ("steps and phases", "GPU timing", "kernel window"):
        assert not told(machine)[what].ok
        assert "stepscope[torch]" in told(machine)[what].detail


def test_a_cpu_build_cannot_time_the_gpu(machine):
    machine["torch"]["cuda"] = None
    assert not told(machine)["GPU timing"].ok
    assert told(machine)["GPU samples"].ok


def test_without_a_gpu_only_gpu_lines_are_crossed(machine):
    machine["gpus"] = []
    crossed = [capability.what for capability in able(machine) if not capability.ok]
    assert crossed == ["GPU timing", "GPU samples", "energy"]


def test_missing_extras_name_themselves(machine):
    machine["packages"] = {"py-spy": None, "memray": None}
    assert "stepscope[python]" in told(machine)["host code"].detail
    assert "stepscope[memory]" in told(machine)["memory lines"].detail


def test_counters_kept_for_root(machine):
    machine["counters_need_root"] = True
    assert not told(machine)["Nsight Compute"].ok
    machine["is_root"] = True
    assert told(machine)["Nsight Compute"].ok


def test_what_to_mind_is_said(machine):
    machine["cpu"] |= {"governor": "powersave", "load_average": (9.0, 1.0, 1.0)}
    machine["gpus"][0] |= {"processes": 2, "pcie_width": 8}
    words = " ".join(minded(machine))
    for part in ("powersave", "load 9 on 8", "2 processes", "8 of 16 PCIe lanes"):
        assert part in words


def test_ceilings_measured_on_a_busy_machine_are_doubted(machine):
    entry = {"value": 1.0, "spread": 0.5}
    assert "51% busy" in minded(machine, {"busy_percent": 51.2, "ceilings": {}})[0]
    shaky = {"busy_percent": 0.0, "ceilings": {"launch_us": entry}}
    assert "operator call" in minded(machine, shaky)[0]
