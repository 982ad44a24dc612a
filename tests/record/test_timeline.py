"""Helpers of columns against numpy's own, which import more."""

import numpy as np
import pytest

from stepscope.record.timeline import distinct_values, percentiles


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_percentiles_and_values_are_those_of_numpy(size: int) -> None:
    random = np.random.default_rng(size)
    for column in (random.integers(-5, 50, size), random.normal(size=size) * 1e6):
        wanted = (0, 10, 25, 50, 90, 95, 99, 100)
        assert percentiles(column, *wanted) == np.percentile(column, wanted).tolist()
        assert np.array_equal(distinct_values(column), np.unique(column))


def test_of_nothing_there_are_no_values() -> None:
    assert not len(distinct_values(np.empty(0, np.int64)))
