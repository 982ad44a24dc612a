"""Microseconds as a trace writes them, in whole nanoseconds."""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
from msgspec import Raw

from stepscope.record.timeline import Column
from stepscope.trace.kineto_events import FLOAT_EXACT_BELOW

UNUSABLE = np.iinfo(np.int64).min  # a time that is no number, or centuries away
_LARGEST = 2**52  # microseconds, about 140 years


class InexactError(Exception):
    """A float was met where only the text holds the nanoseconds."""


def nanoseconds(values: Sequence[Any]) -> Column:
    """Exact to the nanosecond; UNUSABLE where there is no usable number.

    Takes ints, floats, Decimals and the JSON text of a number; raises InexactError for floats too
    large to be exact.
    """
    if any(type(value) is Raw for value in values[:1]):
        return _from_text(values)
    try:
        numbers = np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_one(value) for value in values], np.int64)
    large = np.abs(numbers) >= FLOAT_EXACT_BELOW
    if large.any():
        kinds = {type(values[n]) for n in np.flatnonzero(large).tolist()}
        if float in kinds:
            raise InexactError
        if kinds != {int}:
            return np.array([_one(value) for value in values], np.int64)
    return from_float(numbers)


def from_float(numbers: Column) -> Column:
    """Of numbers that are whole, or small enough to be exact."""
    usable = np.abs(numbers) < _LARGEST
    if not usable.all():
        numbers = np.where(usable, numbers, 0)
    whole = np.floor(numbers)
    result = whole.astype(np.int64) * 1000
    result += np.rint((numbers - whole) * 1000).astype(np.int64)
    result[~usable] = UNUSABLE
    return result


def _from_text(values: Sequence[Any]) -> Column:
    """Of JSON texts: at once where all have the same form, one by one otherwise."""
    texts = [bytes(value) if type(value) is Raw else str(value).encode() for value in values]
    width = len(texts[0])
    dot = texts[0].find(b".")
    if 0 < dot <= 15 and width == dot + 4 and {len(text) for text in texts} == {width}:
        digits = np.frombuffer(b"".join(texts), np.uint8).reshape(len(texts), width)
        points = digits[:, dot] == ord(".")
        numbers = np.delete(digits, dot, axis=1).astype(np.int64) - ord("0")
        if points.all() and numbers.min() >= 0 and numbers.max() <= 9:
            return numbers @ (10 ** np.arange(width - 2, -1, -1, dtype=np.int64))
    return np.array([_one(text.decode("ascii", "replace")) for text in texts], np.int64)


def _one(value: Any) -> int:
    try:
        number = Decimal(value.strip().strip('"') if isinstance(value, str) else value)
    except (InvalidOperation, TypeError, ValueError):
        return int(UNUSABLE)
    if not number.is_finite() or not -_LARGEST < number < _LARGEST:
        return int(UNUSABLE)
    return round(number * 1000)
