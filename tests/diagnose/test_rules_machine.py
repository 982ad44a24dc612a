"""Rules about the machine. None of this could be brought about here: the documents are made up."""

import pytest
from cases import case, copies, gpu_facts, show, sound, trace
from rulings import findings_of

from stepscope.record.run import DeviceSwitch

RULES = (
    "machine.throttled",
    "machine.power_cap",
    "machine.other_process",
    "machine.slow_link",
    "machine.numa_remote",
    "machine.few_cores",
    "machine.governor",
    "machine.idle_gpu",
    "machine.data_parallel",
)
WAITING = {"idle_ns": {"host": 50_000_000}}


def found(document, window=None, device="cuda"):
    """What the rules find, by id."""
    return sound(one for name in RULES for one in findings_of(name, case(device, document, window)))


def machine(cpu=None, **gpu):
    """A run on such a machine."""
    return show(config={"machine": {"cpu": cpu or {}, "gpus": [gpu_facts(**gpu)]}})


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_machine_in_order_is_left_alone(device):
    assert found(show(device), trace(device), device) == {}


def test_a_trace_alone_tells_nothing_of_the_machine():
    assert found(None, trace()) == {}


def on_the_cpu(**config):
    """A program that computes on the CPU of a machine with a GPU."""
    machine = {"cpu": {}, "gpus": [gpu_facts()], "torch": {"version": "2.13.0", "cuda": "13.0"}}
    return show("cpu", config={"machine": machine} | config)


def test_a_gpu_that_is_there_and_not_used_is_named():
    one = found(on_the_cpu(), device="cpu")["machine.idle_gpu"]
    assert one.share == pytest.approx(19.3 / 20)
    assert one.where[0].line == 56  # where the model is called
    assert 'to("cuda")' in one.advice


@pytest.mark.parametrize(
    ("switch", "advice"),
    [
        ({"option": "--cuda"}, "Run it with --cuda."),
        ({"option": "--no-cuda", "given": True}, "Run it without --no-cuda."),
        ({}, 'Choose "cuda" where the device is named.'),
    ],
)
def test_the_option_or_line_that_chooses_the_device_is_named(switch, advice):
    switch = DeviceSwitch(file="/home/me/train.py", line=7, **switch)
    one = found(on_the_cpu(device_switch=switch.to_json()), device="cpu")["machine.idle_gpu"]
    assert one.advice == advice
    assert (one.where[0].file, one.where[0].line) == ("/home/me/train.py", 7)


def test_a_torch_without_cuda_is_said_first():
    machine = {"gpus": [gpu_facts()], "torch": {"version": "2.13.0+cpu", "cuda": None}}
    one = found(on_the_cpu(machine=machine), device="cpu")["machine.idle_gpu"]
    assert "no CUDA" in one.advice


@pytest.mark.parametrize("visible", ["", "-1"])
def test_a_gpu_that_was_hidden_on_purpose_is_not_missed(visible):
    hidden = on_the_cpu(environment={"CUDA_VISIBLE_DEVICES": visible})
    assert found(hidden, device="cpu") == {}


def wrapped(*gpus, **environment):
    model = show()["config"]["models"][0] | {"name": "DataParallel"}
    machine = {"cpu": {}, "gpus": list(gpus)}
    return show(config={"machine": machine, "models": [model], "environment": environment})


def test_data_parallel_over_one_gpu_is_named():
    assert set(found(wrapped(gpu_facts()))) == {"machine.data_parallel"}
    two = gpu_facts(), gpu_facts()
    assert found(wrapped(*two)) == {}
    assert set(found(wrapped(*two, CUDA_VISIBLE_DEVICES="1"))) == {"machine.data_parallel"}


def test_heat_slows_the_gpu():
    document = show(gpu={"throttled_by": ["thermal slowdown"], "temperature_c": 91.0})
    one = found(document)["machine.throttled"]
    assert "cooling" in one.advice
    assert (one.scope, one.kind) == ("machine", "none")


def test_a_power_brake_is_not_heat():
    one = found(show(gpu={"throttled_by": ["power brake"]}))["machine.throttled"]
    assert "cooling" not in one.advice


def test_the_power_cap_is_told_where_the_power_is_near_it():
    at_it = show(gpu={"throttled_by": ["power cap"], "power_w": 680.0})
    assert set(found(at_it)) == {"machine.power_cap"}
    for_a_moment = show(gpu={"throttled_by": ["power cap"], "power_w": 300.0})
    assert found(for_a_moment) == {}


@pytest.mark.parametrize(
    ("count", "title"),
    [(1.0, "Another process uses this GPU"), (3.0, "3 other processes use this GPU")],
)
def test_others_on_the_gpu(count, title):
    assert found(show(gpu={"other_processes": count}))["machine.other_process"].title == title


def test_missing_lanes():
    window = trace(breakdown_ns={"exposed_copy": 28_800_000})
    one = found(machine(pcie_width=8), window)["machine.slow_link"]
    assert one.title == "The GPU uses 8 of 16 PCIe lanes"
    assert one.share == pytest.approx(0.2)
    assert one.predicted.step_ms == pytest.approx(18.0)


def test_a_lower_generation_is_told_only_where_copies_are_slow():
    document = machine(pcie_generation=3)
    fast = trace(copies=[copies("HtoD", "pinned", 10.0, bytes=10**9, bytes_per_s=5.3e10)])
    slow = trace(copies=[copies("HtoD", "pinned", 10.0, bytes=10**9, bytes_per_s=1.2e10)])
    assert found(document, fast) == {}
    assert found(document, trace()) == {}
    one = found(document, slow)["machine.slow_link"]
    assert one.title == "The GPU's link runs at PCIe 3 instead of 5"


def test_slow_copies_over_a_good_link_are_not_the_links():
    slow = trace(copies=[copies("HtoD", "pinned", 10.0, bytes=10**9, bytes_per_s=1.2e10)])
    assert found(machine(), slow) == {}


def test_cores_of_the_other_socket():
    cpu = {"numa_nodes": 2, "usable_cores": 64}
    one = found(machine(cpu, numa_node=1, cpu_affinity="32-63"), trace(**WAITING))
    assert str(one["machine.numa_remote"].fix) == "affinity"
    held = {"numa_nodes": 2, "usable_cores": 32}
    assert found(machine(held, numa_node=1, cpu_affinity="32-63"), trace(**WAITING)) == {}
    busy = trace(idle_ns={"host": 0})
    assert found(machine(cpu, numa_node=1, cpu_affinity="32-63"), busy) == {}


def hungry(cpu_percent=390.0, data_wait=10.0, **cpu):
    """A run that waits for data with four usable cores."""
    document = machine({"usable_cores": 4, "logical_cores": 64} | cpu)
    document["host"]["cpu_percent"] = cpu_percent
    document["phases_ms"] |= {"data_wait": data_wait, "forward": 3.0, "backward": 5.0}
    return document


def test_all_usable_cores_busy_and_still_no_data():
    window = trace(idle_ns={"loader": 70_000_000})
    one = found(hungry(), window)["machine.few_cores"]
    assert one.share == pytest.approx(0.5)
    assert "The machine has 64 cores" in one.advice
    assert "More workers" in found(hungry(logical_cores=4), window)["machine.few_cores"].advice
    assert found(hungry(cpu_percent=150.0), window) == {}
    assert found(hungry(data_wait=0.1), window) == {}


def test_a_governor_that_saves_power_while_the_gpu_waits():
    saving = machine({"governor": "powersave"})
    assert set(found(saving, trace(**WAITING))) == {"machine.governor"}
    assert found(saving, trace(idle_ns={"host": 0})) == {}
    assert found(machine({"governor": "performance"}), trace(**WAITING)) == {}
