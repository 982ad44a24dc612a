"""The knee of a batch sweep."""

import pytest

from stepscope.stats.series import knee_index


@pytest.mark.parametrize(
    ("rates", "place"),
    [
        ([100, 190, 300, 315, 320], 3),
        ([100, 150, 200], 2),
        ([100, 104, 300, 580, 590], 3),
        ([100, 101, 100], 0),
        ([100, 90, 80], 0),
        ([96, 100], 0),
        ([7], 0),
        ([], None),
        ([0, 0], None),
    ],
)
def test_the_knee_is_the_first_size_within_five_percent_of_the_best(rates, place):
    assert knee_index(rates) == place


def test_the_margin_can_be_another():
    assert knee_index([80, 100], within=0.25) == 0
