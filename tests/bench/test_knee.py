"""The knee of a batch sweep."""

from stepscope.bench.speed import knee_batch


def test_the_knee_is_where_a_doubling_gains_less_than_a_tenth():
    assert knee_batch([(16, 100), (32, 190), (64, 300), (128, 315), (256, 320)]) == 64


def test_throughput_that_still_grows_has_no_knee():
    assert knee_batch([(16, 100), (32, 150), (64, 200)]) is None


def test_a_slow_measurement_in_between_makes_no_knee():
    assert knee_batch([(16, 100), (32, 104), (64, 300), (128, 580), (256, 590)]) == 128


def test_steps_that_are_no_doublings_count_by_doubling():
    # four times the batch for 1.3 times the throughput is 1.14 a doubling: worth it
    assert knee_batch([(8, 100), (32, 130), (128, 133)]) == 32


def test_a_flat_sweep_has_its_knee_at_once():
    assert knee_batch([(4, 100), (1, 100), (2, 101)]) == 1


def test_a_falling_sweep_has_its_knee_at_once():
    assert knee_batch([(1, 100), (2, 90), (4, 80)]) == 1


def test_two_batches_are_no_sweep():
    assert knee_batch([(1, 100), (2, 100)]) is None
    assert knee_batch([(1, 100), (2, 100), (4, 0)]) is None
