"""Divides sets that end into training and test samples, always the same way."""

import hashlib
from collections.abc import Iterable

from stepscope.record.errors import UsageError

_TEST_SHARE = 5


def divide(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """A fifth of the names is for the test, at least one of two; the order is as if shuffled."""
    shuffled = sorted(names, key=mixed)
    test = max(1, len(shuffled) // _TEST_SHARE) if len(shuffled) > 1 else 0
    return shuffled[test:], shuffled[:test]


def mixed(name: str) -> bytes:
    """What to sort by for an order that has nothing to do with the names."""
    return hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=16).digest()


def how_many(asked: int | None, there: int, what: str, option: str) -> int:
    """The number of samples to take: all that are there where None is asked for."""
    if there == 0:
        raise UsageError(f"{what} has no samples for --{option}")
    if asked is not None and asked > there:
        raise UsageError(f"--{option} {asked}: {what} has {there}")
    return there if asked is None else asked
