"""What a program shows before its batch size changes, and memory by batch size."""

import pytest

from stepscope.batch.program import feeding_loader, program_facts
from stepscope.batch.sizes import (
    SizeMeasurement,
    SizeResult,
    combine_processes,
    knee_size,
    largest_by_memory,
    pooled_spread,
    predicted_bytes,
    still_growing,
    with_headroom,
)
from stepscope.record.errors import UsageError
from stepscope.record.trial import TrialStatus


def loader(batch_size, samples=1000, shuffle=False, **more):
    return {
        "batch_size": batch_size,
        "samples": samples,
        "shuffle": shuffle,
        "drop_last": False,
        "num_workers": 0,
        "prefetch_factor": None,
        **more,
    }


def test_the_loader_whose_batches_are_a_step_s_feeds_it():
    train, test = loader(32, 100), loader(500, 10_000)
    assert feeding_loader([test, train], 31.4) is train


def test_with_accumulated_gradients_the_shuffling_loader_feeds_the_steps():
    train, test = loader(32, 100, shuffle=True), loader(500, 10_000)
    assert feeding_loader([test, train], 96.0) is train


@pytest.mark.parametrize(
    ("loaders", "words"),
    [
        ([], "no DataLoader in the program forms batches"),
        ([loader(None)], "no DataLoader in the program forms batches"),
        ([loader(1)], "single samples"),
    ],
)
def test_a_program_without_batches_is_refused(loaders, words):
    with pytest.raises(UsageError, match=words):
        feeding_loader(loaders, None)


def document(gpu=None):
    return {
        "loaders": [loader(32, drop_last=True, num_workers=4, prefetch_factor=3)],
        "steps": {"samples_per_step": 32.0},
        "gpu": gpu,
        "config": {
            "machine": {"cpu": {"model": "EPYC"}},
            "optimizers": [{"name": "SGD", "lr": 0.1}, {"name": "SGD", "lr": 0.1}],
        },
    }


def test_what_is_free_is_the_memory_of_a_program_on_the_cpu():
    found = program_facts(document(), 5e9)
    assert (found.device, found.device_name, found.memory_bytes) == ("cpu", "EPYC", 5e9)
    assert (found.batch, found.samples, found.drop_last, found.buffer) == (32, 1000, True, 12)
    assert found.optimizers == (("SGD", 0.1),)


def test_the_gpu_s_memory_is_that_of_a_program_on_it():
    found = program_facts(document({"name": "H200", "total_bytes": 1.5e11}), 5e9)
    assert (found.device, found.device_name, found.memory_bytes) == ("cuda", "H200", 1.5e11)


def ran(batch, memory=None, rate=100.0):
    return SizeResult(batch, TrialStatus.OK, None, None, 1, samples_per_s=rate, memory_bytes=memory)


def test_memory_is_a_fixed_part_and_so_much_for_each_sample():
    points = [ran(8, 900.0), ran(16, 1160.0), ran(32, 1320.0)]
    assert predicted_bytes(points, 64) == 1640.0
    assert largest_by_memory(points, 2000.0) == 100


def test_memory_that_does_not_grow_predicts_no_end():
    points = [ran(8, 1000.0), ran(16, 990.0)]
    assert predicted_bytes(points, 64) == 990.0
    assert largest_by_memory(points, 2000.0) is None


def test_one_size_predicts_nothing():
    assert (
        predicted_bytes([ran(8, 1000.0), SizeResult(16, TrialStatus.FAILED, None, "", 1)], 32)
        is None
    )
    assert largest_by_memory([], 2000.0) is None


def test_a_size_that_keeps_no_headroom_is_not_roomy_and_one_of_unknown_memory_is():
    points = [ran(8, 50.0), ran(16, 95.0), ran(32), SizeResult(64, TrialStatus.FAILED, None, "", 1)]
    assert [one.batch for one in with_headroom(points, 100.0, 0.1)] == [8, 32]
    assert [one.batch for one in with_headroom(points, None, 0.1)] == [8, 16, 32]


def test_the_knee_of_nothing_is_none():
    assert knee_size([], 0.05) is None
    assert not still_growing([ran(8)], 0.05)


def test_throughput_that_grew_up_to_the_last_size_is_still_growing():
    assert still_growing([ran(8, rate=50.0), ran(16, rate=100.0)], 0.05)
    assert not still_growing([ran(8, rate=97.0), ran(16, rate=100.0)], 0.05)


def measured(batch, *step_ms, **more):
    return SizeMeasurement(batch, step_ms=step_ms, samples_per_step=float(batch), **more)


def test_the_interval_of_a_size_rests_on_the_spread_of_all_sizes():
    steady = [measured(8, *[10.0] * 8), measured(8, *[10.1] * 8)]
    noisy = [measured(16, *[20.0] * 8), measured(16, *[24.0] * 8)]
    between = pooled_spread([steady, noisy, [measured(32, 1.0)]])
    assert between.degrees == 2
    found = combine_processes(steady, between)
    assert found.samples_per_s == pytest.approx(796, rel=0.01)
    assert found.low < 0.8 * found.samples_per_s


def test_a_single_process_has_no_interval():
    found = combine_processes([measured(8, *[10.0] * 8)], None)
    assert (found.low, found.high, found.step_ms) == (None, None, pytest.approx(10.0))


def test_a_size_that_failed_once_has_failed():
    failed = SizeMeasurement(8, TrialStatus.OUT_OF_MEMORY, memory_bytes=9.0)
    found = combine_processes([measured(8, 10.0, memory_bytes=5.0), failed])
    assert (found.status, found.processes, found.memory_bytes) == ("out_of_memory", 2, 9.0)


def test_energy_is_told_for_a_sample():
    found = combine_processes([measured(8, 10.0, energy_j_per_step=4.0)])
    assert found.energy_j_per_sample == 0.5
