"""One process of a point: whatever becomes of it is a record."""

import json
import math
import os
import signal
import threading
import time

import numpy as np
import pytest
from msgspec import to_builtins

from stepscope.bench import measure_point
from stepscope.bench.grid import Point
from stepscope.bench.machine import Gauges, machine_during, rise_within
from stepscope.bench.results import FixReport
from stepscope.hardware.processor import RaplCounter
from stepscope.launch.child import Outcome
from stepscope.record.row_log import SAMPLE_COLUMNS
from stepscope.workloads.measure.record import InferMeasured, ProgramError

pytestmark = pytest.mark.launches

_PROGRAM = """
import json, os, sys, time
from pathlib import Path

way, target, *more = sys.argv[1:]
started = time.monotonic_ns()
print("this was said")
found = {"mode": "infer", "error": None, "samples": 8}
if way == "works":
    while time.process_time() < 0.6:
        pass
elif way == "tells-its-environment":
    found["environ"] = dict(os.environ)
elif way == "counts":
    found["more"] = more
    found["flops_per_sample"] = 1.5e9
elif way == "memory":
    found["error"] = {"kind": "out_of_memory", "text": "CUDA out of memory: 3 GiB"}
elif way == "breaks":
    raise ValueError("no such thing")
elif way == "refuses":
    print("train: no data in here", file=sys.stderr)
    sys.exit(2)
elif way == "is-refused":
    print("libgomp: Thread creation failed: try again", file=sys.stderr)
    sys.exit(1)
elif way == "waits":
    time.sleep(600)
elif way == "dies":
    os.kill(os.getpid(), 11)
elif way == "leaves":
    sys.exit(0)
found |= {"started_ns": started, "ended_ns": time.monotonic_ns()}
Path(target).write_text(json.dumps(found))
sys.exit(3 if found["error"] else 0)
"""


class Made(Point):
    """A point whose program ends in the way that its model names."""

    def command(self, measure_file):
        return ["made_program", self.model, str(measure_file)]


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Measures the program above in one of its ways."""
    (tmp_path / "made_program.py").write_text(_PROGRAM)
    monkeypatch.chdir(tmp_path)

    def measure(way, timeout_s=200.0, fixes=()):
        point = Made(way, "infer", 4, "cpu", fixes)
        return measure_point.measure(point, tmp_path / "process", timeout_s)

    return measure


def written(tmp_path):
    """What the process wrote."""
    return json.loads((tmp_path / "process" / measure_point.MEASURED).read_text())


def test_a_process_that_works_is_measured_with_its_machine(measure, tmp_path):
    record = measure("works")
    assert (record.status, record.why, record.exit_code) == ("ok", None, 0)
    assert record.measured.samples == 8
    assert record.fixes == ()
    assert record.seconds > 0.5
    assert 0 < record.machine.own_cores < 2
    assert 0 < record.machine.host_busy <= 1
    assert record.machine.gpu_busy is None
    assert "this was said" in (tmp_path / "process" / measure_point.OUTPUT_FILE).read_text()
    json.dumps(to_builtins(record), allow_nan=False)


def test_without_fixes_the_process_is_not_observed(measure, tmp_path):
    measure("tells-its-environment")
    environ = written(tmp_path)["environ"]
    assert "STEPSCOPE_PROBE" not in environ
    assert environ.get("PYTHONPATH") == os.environ.get("PYTHONPATH")


def test_fixes_asked_of_a_program_without_torch_are_told(measure):
    record = measure("works", fixes=("tf32",))
    assert record.status == "ok"
    assert [(fix.name, fix.state) for fix in record.fixes] == [("tf32", "not applicable")]


def test_variables_of_fixes_reach_the_process(measure, tmp_path):
    measure("tells-its-environment", fixes=("expandable_segments",))
    environ = written(tmp_path)["environ"]
    assert "expandable_segments:True" in "".join(environ.values())


@pytest.mark.parametrize(
    ("way", "status", "why"),
    [
        ("memory", "out_of_memory", "CUDA out of memory: 3 GiB"),
        ("breaks", "failed", "ValueError: no such thing"),
        ("refuses", "failed", "no data in here"),
        ("is-refused", "out_of_memory", "libgomp: Thread creation failed: try again"),
        ("dies", "failed", "ended by signal 11: this was said"),
        ("leaves", "failed", "this was said"),
    ],
)
def test_what_goes_wrong_is_a_result(measure, monkeypatch, way, status, why):
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    record = measure(way)
    assert (record.status, record.why) == (status, why)
    assert record.machine.own_cores is None or status == "out_of_memory"


def test_a_process_that_hangs_is_ended(measure):
    record = measure("waits", timeout_s=0.5)
    assert record.status == "timed_out"
    assert "--timeout" in record.why
    assert record.measured is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_and_interrupts(measure, number):
    before = signal.getsignal(number)

    def send():
        while signal.getsignal(number) is before:  # until somebody listens
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=send).start()
    with pytest.raises(KeyboardInterrupt):
        measure("waits")
    assert signal.getsignal(number) is before


def test_leftovers_of_an_earlier_try_do_not_count(measure, tmp_path):
    measure("works")
    assert measure("breaks").measured is None


def test_a_fix_that_broke_the_program_is_the_reason():
    outcome = Outcome(1, None, False, 0, 10**9, 1)
    fixes = [FixReport(name="channels_last", state="broke", reasons=("`view` needs more",))]
    error = InferMeasured(error=ProgramError("failed", "RuntimeError: view"))
    found = measure_point.process_status(outcome, error, fixes, False, "RuntimeError: view")
    assert found == ("failed", "channels_last: `view` needs more")


def test_a_process_ended_by_the_kernel_for_memory_is_out_of_memory():
    outcome = Outcome(137, 9, False, 0, 10**9, 1)
    assert measure_point.process_status(outcome, None, [], True, "")[0] == "out_of_memory"
    assert measure_point.process_status(outcome, None, [], False, "") == (
        "failed",
        "ended by signal 9",
    )


def samples(**columns):
    """A table of ten samples, a tenth of a second apart from second 1 on."""
    table = np.full(10, math.nan, dtype=[(name, "<f8") for name in SAMPLE_COLUMNS])
    table["t_ns"] = 1e9 + np.arange(10) * 1e8
    for name, values in columns.items():
        table[name] = values
    return table


def test_only_samples_within_the_section_count():
    table = samples(
        gpu_percent=[0, 0, 80, 90, 100, 90, 80, 0, 0, 0],
        gpu_power_w=[100, 100, 500, 500, 500, 500, 500, 100, 100, 100],
        gpu_throttle=[0x20, 0, 0x4, 0, 0, 0, 0, 0, 0, 0],
        gpu_other_processes=[9, 0, 1, 0, 0, 0, 0, 0, 0, 9],
        gpu_sm_mhz=1980,
    )
    found = machine_during(table, Gauges(), "cuda", 1.15e9, 1.65e9)
    assert found.gpu_busy == pytest.approx(0.88)
    assert found.power_w == 500
    assert found.sm_mhz == 1980
    assert found.throttle == ("power cap",)
    assert found.other_processes == 1
    assert found.energy_j is None


def test_energy_is_the_rise_of_the_counter_between_the_ends_of_the_section():
    # 500 W: 50 J each tenth of a second, and a counter that is renewed every other sample
    stale = np.repeat(np.arange(5) * 100e3, 2)
    found = machine_during(samples(gpu_energy_mj=stale), Gauges(), "cuda", 1.15e9, 1.75e9)
    assert found.energy_j == pytest.approx(300)


def test_too_few_samples_say_nothing():
    found = machine_during(
        samples(gpu_percent=50, gpu_energy_mj=1), Gauges(), "cuda", 1.1e9, 1.25e9
    )
    assert found.gpu_busy is None
    assert found.energy_j is None


def test_a_total_read_for_too_little_of_a_section_is_not_known():
    times, totals = np.array([1.0, 2.0, 3.0]), np.array([0.0, 10.0, 20.0])
    assert rise_within(times, totals, 1.5, 2.5) == pytest.approx(10)
    assert rise_within(times, totals, 1.0, 3.2) == pytest.approx(22)
    assert rise_within(times, totals, 2.0, 6.0) is None
    assert rise_within(times, totals, 5.0, 6.0) is None
    assert rise_within(times[:1], totals[:1], 1.0, 1.5) is None


def test_processor_energy_and_neighbours_come_from_the_gauges():
    gauges = Gauges(
        t_ns=[10**9, 2 * 10**9, 3 * 10**9], busy_s=[5.0, 7.0, 9.0], host_j=[0.0, 30.0, 60.0]
    )
    found = machine_during(samples(cpu_percent=150), gauges, "cpu", 1.1e9, 1.9e9)
    assert found.energy_j == found.host_energy_j == pytest.approx(24)
    assert found.own_cores == pytest.approx(1.5)
    assert found.other_cores == pytest.approx(0.5)


def test_rapl_adds_packages_up_and_survives_a_full_counter(tmp_path):
    def write(package, energy):
        folder = tmp_path / f"intel-rapl:{package}"
        folder.mkdir(exist_ok=True)
        (folder / "energy_uj").write_text(f"{energy}\n")
        (folder / "max_energy_range_uj").write_text("10000000\n")

    write("0", 9_000_000)
    write("1", 0)
    write("0:0", 0)  # within package 0: counted there
    rapl = RaplCounter(tmp_path)
    assert rapl.joules() == 0
    write("0", 1_000_000)
    write("1", 3_000_000)
    write("0:0", 5_000_000)
    assert rapl.joules() == pytest.approx(2 + 3)
    (tmp_path / "intel-rapl:1" / "energy_uj").unlink()
    assert rapl.joules() is None


def test_without_rapl_there_is_no_energy(tmp_path):
    assert RaplCounter(tmp_path).joules() is None
    assert not RaplCounter(tmp_path).readable


def test_operations_counted_once_are_told_to_later_processes(measure, tmp_path, monkeypatch):
    monkeypatch.setattr(measure_point, "_flops", {})
    measure("counts")
    assert written(tmp_path)["more"] == []
    measure("counts")
    assert written(tmp_path)["more"] == ["--flops", "1500000000.0"]
    assert measure("works").status == "ok"
