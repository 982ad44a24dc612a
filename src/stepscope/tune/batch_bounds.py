"""What a search for a batch size may do, and why it ended."""

from dataclasses import dataclass
from typing import Final

MOST_OF_FIX: Final = 999_999
"""The largest number `--fix batch=N` takes."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a search. None: not limited, or not known."""

    start: int
    """The batch size to begin with: the program's own."""
    smallest: int | None = None
    """Smaller ones than `start` are tried down to it."""
    largest: int | None = None
    samples: int | None = None
    """In an epoch: no batch is larger."""
    memory_bytes: float | None = None
    """What there is for the program."""
    fills: bool = False
    """Whether memory may be filled to its end: on a GPU, where that costs one process at most."""
    headroom: float = 0.10
    within: float = 0.05
    budget_s: float | None = None
    """Seconds of processes in all: none begins that should end later."""
    longest_s: float | None = None
    """Seconds of one process that only looks for the largest batch."""


@dataclass(frozen=True, slots=True)
class Stop:
    """What ended the way up: `kind` for programs, `words` for people.

    Kinds: memory, room (memory would be passed), failure, flat, falls, limit, epoch, short, budget.
    """

    kind: str
    words: str
