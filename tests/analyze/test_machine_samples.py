"""What the machine did during a run, from samples made by hand."""

import numpy as np
import pytest
from documents import made
from msgspec import to_builtins

from stepscope.analyze.run.document import HostTotals
from stepscope.analyze.run.steps import DEVICE_PHASES, HOST_PHASES, Steps
from stepscope.analyze.run.totals import free_cores, gpu_totals, host_totals, memory_totals
from stepscope.analyze.timeline.document import TraceAnalysis
from stepscope.record.facts import Facts, MemoryFact
from stepscope.record.row_log import SAMPLE_COLUMNS
from stepscope.record.run import RunInfo, RunRecord

GIB = 1 << 30
S = 1e9
RUN = RunRecord(
    run=RunInfo(exit_code=0),
    machine={"gpus": [{"name": "NVIDIA H200", "memory_bytes": 140 * GIB}]},
)


def steps(count=100, ms=10.0, start=10 * S):
    """Steps of the same length, one after another."""
    duration = np.full(count, ms * 1e6)
    nothing = np.zeros(count)
    return Steps(
        duration, start + np.cumsum(duration), dict.fromkeys(HOST_PHASES, nothing),
        dict.fromkeys(DEVICE_PHASES, nothing),
        nothing, nothing, nothing > 0, nothing == 0, nothing > 0, False, "training", {}, {},
    )  # fmt: skip


def samples(count=120, every_s=0.1, **columns):
    """Samples ten times a second from 0 s on; a column is one value or one a sample."""
    made = np.full(count, np.nan, dtype=[(name, "<f8") for name in SAMPLE_COLUMNS])
    made["t_ns"] = np.arange(count) * every_s * S
    for name, value in columns.items():
        made[name] = value
    return made


@pytest.fixture
def facts():
    return Facts()


@pytest.fixture
def on_gpu():
    return Facts(
        [
            MemoryFact(
                state={"cuda": {"parameters": 2 * GIB, "gradients": 2 * GIB}, "cpu": {}},
                activations_bytes=3 * GIB,
                peak_allocated_bytes=9 * GIB,
                peak_reserved_bytes=10 * GIB,
                retries=0,
            )
        ]
    )


def recorded(busy_ms, kernels=0):
    """A window of one step that the device works so long in."""
    whole = {"wall": int(busy_ms * 1e6), "idle": 0}
    return made(
        TraceAnalysis,
        steps={"count": 1},
        devices=[{"whole_ns": whole}],
        launch={"kernels": kernels},
    )


def told(facts, taken, found=None, window=None, use=None):
    found = steps() if found is None else found
    use = np.ones(len(found), bool) if use is None else use
    return to_builtins(gpu_totals(RUN, facts, taken, found, use, window))


def test_a_program_on_the_cpu_has_no_gpu(facts):
    assert told(facts, samples()) is None
    facts = Facts([MemoryFact(state={"cpu": {"parameters": 1}}, activations_bytes=None)])
    assert told(facts, samples()) is None


def test_the_device_and_its_memory_are_named(on_gpu):
    found = told(on_gpu, samples())
    assert found["name"] == "NVIDIA H200"
    assert found["total_bytes"] == 140 * GIB
    assert found["peak_allocated_bytes"] == 9 * GIB
    assert found["peak_reserved_bytes"] == 10 * GIB


def test_the_busy_share_is_kernel_time_over_the_step_outside_the_window(on_gpu):
    found = told(on_gpu, samples(gpu_percent=99), window=recorded(2.5, 40))
    assert found["busy_fraction"] == pytest.approx(0.25)
    assert found["kernels_per_step"] == 40


def test_the_busy_share_is_at_most_one(on_gpu):
    assert told(on_gpu, samples(), window=recorded(12.0))["busy_fraction"] == 1.0


@pytest.mark.parametrize("window", [None, made(TraceAnalysis, steps={"count": 1})])
def test_without_a_window_the_busy_share_is_what_was_sampled(on_gpu, window):
    assert told(on_gpu, samples(gpu_percent=40), window=window)["busy_fraction"] == 0.4


def test_without_either_the_busy_share_is_not_known(on_gpu):
    assert told(on_gpu, samples())["busy_fraction"] is None


def test_only_samples_taken_while_steps_ran_count(on_gpu):
    percent = np.zeros(120)
    percent[100:111] = 80
    assert told(on_gpu, samples(gpu_percent=percent))["utilization_percent"] == pytest.approx(
        80, abs=8
    )


def test_too_few_samples_during_the_steps_give_way_to_all(on_gpu):
    short = steps(count=2, ms=1.0)
    assert told(on_gpu, samples(gpu_percent=30), short)["utilization_percent"] == 30


def test_energy_is_the_counters_growth(on_gpu):
    taken = samples(gpu_energy_mj=1e6 + np.arange(120) * 10_000)
    found = told(on_gpu, taken)
    assert found["energy_j"] == pytest.approx(1190)
    assert found["energy_j_per_step"] == pytest.approx(1.0, rel=0.01)


def test_without_an_energy_counter_energy_is_not_known(on_gpu):
    found = told(on_gpu, samples(gpu_power_w=300))
    assert found["energy_j"] is None
    assert found["energy_j_per_step"] is None
    assert found["power_w"] == 300


def test_throttle_reasons_are_named_once(on_gpu):
    masks = np.full(120, np.nan)
    masks[100:110] = 0x4
    masks[105] = 0x20
    reasons = told(on_gpu, samples(gpu_throttle=masks))["throttled_by"]
    assert len(reasons) == len(set(reasons)) == 2


def test_an_idle_gpu_before_the_steps_is_not_throttled(on_gpu):
    masks = np.zeros(120)
    masks[:50] = 0x1
    assert told(on_gpu, samples(gpu_throttle=masks))["throttled_by"] == []


def test_a_run_that_was_never_sampled_has_no_samples(on_gpu):
    found = told(on_gpu, np.zeros(0))
    assert found["utilization_percent"] is None
    assert found["energy_j"] is None
    assert found["throttled_by"] == []
    assert found["peak_allocated_bytes"] == 9 * GIB


def test_a_run_without_steps_still_has_a_gpu(on_gpu):
    found = told(on_gpu, samples(gpu_percent=5, gpu_energy_mj=1.0), steps(0))
    assert found["utilization_percent"] == 5
    assert found["energy_j_per_step"] is None


def test_a_machine_that_tells_nothing_of_its_gpu(on_gpu):
    found = gpu_totals(RunRecord(run=RUN.run), on_gpu, samples(), steps(), np.ones(100, bool), None)
    assert found.name is None
    assert found.total_bytes is None


def test_the_host_is_its_average_and_its_peaks():
    taken = samples(4, cpu_percent=[100, 200, 300, 200], rss_bytes=[1, 5, 3, 2], processes=3)
    taken["read_bytes"] = [0, 10, 20, 30]
    assert host_totals(taken, steps(), np.ones(100, bool)) == HostTotals(
        cpu_percent=200, peak_rss_bytes=5, processes=3, read_bytes=30, write_bytes=None
    )


def test_others_count_while_steps_ran_and_never_less_than_nothing():
    at = np.arange(120) * 0.1 * S
    taken = samples(other_cpu_percent=np.where(at < 5 * S, 200.0, 30.0))
    late = steps()
    late.end[:] = np.linspace(6, 11, len(late.end)) * S
    use = np.ones(len(late.end), bool)
    assert host_totals(taken, late, use).other_cpu_percent == pytest.approx(30.0)
    taken["other_cpu_percent"] = -4.0
    assert host_totals(taken, late, use).other_cpu_percent == 0.0


def test_runs_of_before_know_nothing_of_others():
    taken = samples()[[name for name in SAMPLE_COLUMNS if name != "other_cpu_percent"]]
    assert host_totals(taken, steps(), np.ones(100, bool)).other_cpu_percent is None


@pytest.mark.parametrize(
    ("others", "free"), [(None, 8.0), (0.0, 8.0), (70.0, 8.0), (260.0, 5.4), (1200.0, 1.0)]
)
def test_cores_that_others_use_are_not_free(others, free):
    host = HostTotals(100.0, None, None, None, None, others)
    assert free_cores(8.0, host) == free


def test_a_host_never_sampled_is_not_known():
    assert host_totals(np.zeros(0), steps(), np.ones(100, bool)) is None


def test_gpu_memory_adds_up_to_its_peak(on_gpu):
    found = memory_totals(on_gpu, samples(rss_bytes=5))
    assert found.device == "cuda"
    assert found.peak_bytes == 9 * GIB
    assert found.owners == {
        "parameters": 2 * GIB, "gradients": 2 * GIB, "activations": 3 * GIB, "rest": 2 * GIB,
    }  # fmt: skip
    assert sum(found.owners.values()) == found.peak_bytes


def test_owners_that_exceed_the_peak_leave_no_negative_rest(on_gpu):
    on_gpu.last(MemoryFact).activations_bytes = 30 * GIB
    assert memory_totals(on_gpu, samples()).owners["rest"] == 0


def test_cpu_memory_is_the_processs_own():
    facts = Facts([MemoryFact(state={"cpu": {"parameters": 7}}, activations_bytes=None)])
    found = memory_totals(facts, samples(rss_bytes=500))
    assert (found.device, found.peak_bytes) == ("cpu", 500)
    assert found.owners == {"parameters": 7, "activations": None}


def test_the_last_reading_of_memory_stands(on_gpu):
    first = on_gpu.last(MemoryFact)
    later = MemoryFact(**vars(first) | {"peak_allocated_bytes": 11 * GIB})
    on_gpu = Facts([first, later])
    assert memory_totals(on_gpu, samples()).peak_bytes == 11 * GIB


def test_memory_of_a_run_that_told_nothing(facts):
    assert memory_totals(facts, np.zeros(0)).peak_bytes is None
