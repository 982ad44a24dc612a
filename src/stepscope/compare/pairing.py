"""Which items of two sides belong together."""

from collections.abc import Sequence

from stepscope.compare.items import AS_IT_IS, WITH_FIXES
from stepscope.compare.sides import Item, Side, merged
from stepscope.compare.verdicts import Pair
from stepscope.record.errors import UsageError


def paired(base: Sequence[Side], other: Sequence[Side]) -> tuple[list[Pair], list[str]]:
    """The pairs, and the labels of items that only one side has.

    Raises UsageError where nothing belongs together, or a training meets an inference.
    """
    ours, theirs = merged(tuple(base)), merged(tuple(other))
    if base[0].kind != other[0].kind:
        ours, theirs = _one(ours), _one(theirs)
    if len(ours) == 1 and len(theirs) == 1:
        pairs = [Pair(*ours.values(), *theirs.values())]
        left_out: list[str] = []
    else:
        pairs = [Pair(item, theirs[key]) for key, item in ours.items() if key in theirs]
        alone = [*_only(ours, theirs), *_only(theirs, ours)]
        left_out = [item.label for item in alone]
    if not pairs:
        a, b = (_told(sides[0], items) for sides, items in ((base, ours), (other, theirs)))
        raise UsageError(f"nothing in common to compare: {a}, {b}")
    for pair in pairs:
        _alike(pair, base[0].name, other[0].name)
    return pairs, left_out


def _told(side: Side, items: dict[str, Item]) -> str:
    count = f" of {len(items)} points" if side.kind == "bench" else ""
    return f"{side.name} is a {side.kind}{count}"


def _only(ours: dict[str, Item], theirs: dict[str, Item]) -> list[Item]:
    return [item for key, item in ours.items() if key not in theirs]


def _one(items: dict[str, Item]) -> dict[str, Item]:
    """Of a tune that meets something else, what it came to."""
    for key in (WITH_FIXES, AS_IT_IS):
        if key in items:
            return {key: items[key]}
    return items


def _alike(pair: Pair, base: str, other: str) -> None:
    a, b = pair.base.what, pair.other.what
    if a is not None and b is not None and a != b:
        raise UsageError(f"{base} is {_named(a)} and {other} {_named(b)}: they do not compare")


def _named(what: str) -> str:
    return {"batches": "a data loader alone", "training": "a training"}.get(what, f"an {what}")
