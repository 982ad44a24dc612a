"""Strangers' text and numbers, made fit for a terminal."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.record.units import (
    format_bytes,
    format_duration,
    format_interval,
    format_number,
    plural,
)
from stepscope.report.text import safe, slug

PROPERTY = settings(max_examples=60)


@pytest.mark.parametrize(
    "text",
    ["\x1b[31mred", "a\rb", "a\nb", "a\tb", "bell\x07", "\x9b31m", "\u202eevil", "\u2066x\u2069"],
)
def test_control_characters_become_harmless(text):
    made = safe(text)
    assert not any(unicodedata.category(char) == "Cc" for char in made)
    assert "\u202e" not in made
    assert "\u2066" not in made
    assert len(made) == len(text)


def test_ordinary_text_stays_as_it_is():
    for text in ("train.py", "жаба/тренировка.py", "模型.py", "[red]not markup[/red]", "a·b", ""):
        assert safe(text) == text


@pytest.mark.parametrize(
    ("text", "made"),
    [('a b"<c>/d', "a-b-c-d"), ("../../a b", "a-b"), ("points-1", "points-1"), ("…", "none")],
)
def test_ids_and_names_of_files_hold_nothing_but_plain_letters(text, made):
    assert slug(text, "none") == made


@PROPERTY
@given(st.text("".join(map(chr, range(0x250))) + "\u2028\u202e\u2066あ🙂"))
def test_nothing_safe_can_move_the_cursor(text):
    assert not any(unicodedata.category(char) == "Cc" for char in safe(text))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (63.14, "63.1"), (1240.4, "1,240"), (0.82, "0.82"), (0, "0.00"), (5, "5.00"),
        (10, "10.0"), (100, "100"), (999.6, "1,000"), (9.999, "10.0"), (99.96, "100"),
    ],
)  # fmt: skip
def test_milliseconds(value, text):
    assert format_number(value) == text


@PROPERTY
@given(st.floats(0, 999))
def test_milliseconds_have_three_significant_digits_at_most(value):
    digits = format_number(value).replace(".", "").replace(",", "").lstrip("0")
    assert len(digits) <= 3 or value >= 999.5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.4, "0.4 s"), (0, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (12.3, "12 s"),
        (99.4, "99 s"), (200, "3 min 20 s"), (119.7, "2 min 00 s"), (7500, "2 h 05 min"),
        (86400, "24 h 00 min"),
    ],
)  # fmt: skip
def test_seconds(value, text):
    assert format_duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"), (5, "5 B"), (1000, "1000 B"), (1024, "1.0 KiB"), (12 << 20, "12 MiB"),
        (3.1 * (1 << 30), "3.1 GiB"), (140 * (1 << 30), "140.0 GiB"), (2 << 40, "2048.0 GiB"),
    ],
)  # fmt: skip
def test_sizes(value, text):
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 steps"), (1, "1 step"), (412, "412 steps"), (12345, "12,345 steps")]
)
def test_plurals(count, text):
    assert plural(count, "step") == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.57, 2.0, "1.57–2.00"),
        (0.5, 5.0, "0.50–5.00"),
        (0.002, 425.64, "too noisy to tell"),
        (0.0, 1.0, "too noisy to tell"),
    ],
)
def test_an_interval_that_holds_anything_is_said_in_words(low, high, text):
    assert format_interval(low, high) == text
