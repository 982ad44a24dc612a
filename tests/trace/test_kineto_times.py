"""Microseconds of any spelling, exact to the nanosecond."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from stepscope.trace.kineto.events import UNUSABLE, InexactError, nanoseconds


@given(st.integers(0, 2**43 - 1), st.integers(0, 999))
def test_floats_below_2_to_43_are_exact(whole: int, thousandths: int) -> None:
    text = f"{whole}.{thousandths:03}"
    assert nanoseconds([float(text)]).tolist() == [whole * 1000 + thousandths]


@given(st.lists(st.tuples(st.integers(0, 2**52 - 1), st.integers(0, 999)), min_size=1))
def test_texts_are_exact(values: list[tuple[int, int]]) -> None:
    texts = [Raw(f"{whole}.{part:03}".encode()) for whole, part in values]
    assert nanoseconds(texts).tolist() == [whole * 1000 + part for whole, part in values]


def test_texts_of_mixed_form() -> None:
    texts = [
        b"1712195495876224.750",
        b"1712195495876224",
        b'"1712195495876224.75"',
        b"17e14",
        b"-2",
    ]
    found = nanoseconds([Raw(text) for text in texts]).tolist()
    exact = 1712195495876224750
    assert found == [exact, exact - 750, exact, 17 * 10**17, -2000]


def test_large_whole_numbers_are_exact() -> None:
    assert nanoseconds([1712195495876221, 3]).tolist() == [1712195495876221000, 3000]
    assert nanoseconds([Decimal("1712195495876221.123")]).tolist() == [1712195495876221123]


def test_large_floats_are_refused() -> None:
    with pytest.raises(InexactError):
        nanoseconds([1.5, 1712195495876224.75])


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 10**400, 2**60, Decimal("1e999999999"), Raw(b"null"), Raw(b"[]")],
)
def test_what_is_no_time_is_unusable(value: object) -> None:
    try:
        found = nanoseconds([value]).tolist()
    except InexactError:
        found = [UNUSABLE]
    assert found == [UNUSABLE]


def test_nothing_gives_nothing() -> None:
    assert nanoseconds([]).tolist() == []
