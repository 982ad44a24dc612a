"""What is compared: results of one kind or another, reduced to processes with step times."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stepscope.compare.series import Series
from stepscope.record.timeline import Timeline

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """One thing whose speed is known: a run has one, a bench one a point, a tune two."""

    key: str
    """Items of two results that have it in common belong together."""
    label: str
    """In words; "" where a result has only one."""
    series: tuple[Series, ...]
    """Steady step times by process, ms."""
    samples: float | None
    """A step has, on average; None where nothing counts them."""
    what: str | None
    """training, inference or batches; None where it is not known."""


@dataclass(frozen=True, slots=True)
class Side:
    """One result. `document` is what its kind's `--json` prints."""

    kind: str
    """run, trace, tune or bench."""
    name: str
    document: Document
    items: tuple[Item, ...]
    timeline: Callable[[], Timeline | None] = lambda: None
    """The recorded window; None where there is none."""
    stacks: Callable[[], Timeline | None] = lambda: None
    """The window that was recorded with Python's stacks."""


def merged(sides: tuple[Side, ...]) -> dict[str, Item]:
    """Items of several results by key, their processes together."""
    found: dict[str, Item] = {}
    for item in (item for side in sides for item in side.items):
        before = found.get(item.key)
        if before is None:
            found[item.key] = item
        else:
            found[item.key] = Item(
                item.key, before.label, before.series + item.series,
                before.samples or item.samples, before.what or item.what,
            )  # fmt: skip
    return found
