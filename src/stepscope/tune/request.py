"""What `stepscope tune` was asked for."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stepscope.launch.program import Program
from stepscope.record.errors import UsageError

ALLOW = ("exact", "numeric", "semantic")
OBJECTIVES = ("throughput", "memory", "energy")


@dataclass(frozen=True, slots=True)
class Request:
    """Everything that decides what trials are run and what is kept of them."""

    program: Program
    budget_s: float
    allow: str = "numeric"
    """How far fixes may go: the coarsest of ALLOW."""
    only: tuple[str, ...] = ()
    """Names, or name=value; empty: all that may help."""
    skip: tuple[str, ...] = ()
    objective: str = "throughput"
    steps: int | None = None
    """Of each trial; None: as many as the baseline's pace asks for."""
    seeds: int = 3
    """Of the proof."""
    on: str | None = None
    """The device trials run on; None: the program's own choice."""
    allow_writes: bool = False
    price_per_hour: float | None = None

    def identity(self) -> dict[str, Any]:
        """What a journal must have in common to be gone on with; the budget may grow."""
        found = asdict(self)
        for free in ("budget_s", "price_per_hour", "program"):
            del found[free]
        program = self.program
        return found | {"program": program.name, "argv": list(program.arguments)}


def check_names(words: Sequence[str], option: str) -> tuple[str, ...]:
    """Fixes given by name or with a value, each perhaps several, separated by commas.

    Raises UsageError for what is no fix.
    """
    from stepscope.fixes.catalogue import fix

    found: list[str] = []
    for word in (part.strip() for text in words for part in text.split(",")):
        if not word:
            raise UsageError(f"--{option} wants names of fixes: stepscope fixes lists them")
        name, equals, value = word.partition("=")
        one = fix(name)
        if equals:
            one.parse(value)
        found.append(word)
    return tuple(dict.fromkeys(found))
