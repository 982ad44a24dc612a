"""Ways to need less memory, each by the fixes that bring it about."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from stepscope.bench.request import Variant
from stepscope.record.errors import UsageError

PARTS: Final = 4
"""Batches that accumulation splits one into."""


@dataclass(frozen=True, slots=True)
class Technique:
    """`accumulate` batches make one step of the optimizer: 1 where nothing is accumulated."""

    name: str
    fixes: tuple[str, ...] = ()
    accumulate: int = 1


BASE: Final = Technique("fp32")
SINGLE: Final = (
    Technique("AMP", ("amp=bf16",)),
    Technique("checkpointing", ("checkpointing",)),
    Technique("accumulation", (f"accumulate={PARTS}",), PARTS),
    Technique("fused attention", ("sdpa",)),
)


def asked(variants: Iterable[Variant]) -> list[Technique]:
    """What `--fix` names besides, under its own name."""
    known = {technique.fixes for technique in (BASE, *SINGLE)}
    return [
        Technique(variant.label, variant.fixes, accumulated(variant.fixes))
        for variant in variants
        if variant.fixes not in known
    ]


def accumulated(fixes: Iterable[str]) -> int:
    """How many batches some fixes put into one step."""
    for text in fixes:
        name, _, value = text.partition("=")
        if name == "accumulate" and value:
            return int(value)
    return 1


def together(applied: Sequence[Technique]) -> Technique | None:
    """All that took hold, at once, less those that do not go with one before; None for fewer
    than two."""
    from stepscope.bench.grid import in_order
    from stepscope.fixes.catalogue import parse

    chosen: list[Technique] = []
    for technique in applied:
        fixes = [text for one in (*chosen, technique) for text in one.fixes]
        try:
            parse(fixes)
        except UsageError:
            continue
        chosen.append(technique)
    if len(chosen) < 2:
        return None
    fixes = [text for one in chosen for text in one.fixes]
    return Technique("all together", in_order(fixes), accumulated(fixes))
