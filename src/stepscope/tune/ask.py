"""What one trial is to be."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Ask:
    """One trial: the program once, in a process of its own, for so many steps."""

    fixes: tuple[str, ...] = ()
    """As `--fix` takes them, in the order in which they were found to help."""
    steps: int = 40
    seed: int = 0
    """0: the program's own seeds (0 imposed where it sets none); k: others, the same for all."""
    perturb: str | None = None
    """The weights rounded once to this dtype before the first step: a control. See `ROUNDINGS`."""
    proof: bool = False
    """Besides losses: gradient norms, learning rates, and outputs of an inference program."""
    held: bool = False
    """What is drawn at random for a batch follows from the batch alone, also in workers."""
    window: bool = False
    """With kernel-level recording, for findings; such a trial's speed is not compared."""
    patched: str | None = None
    """A unified diff applied to the scratch copy before the program starts."""

    def key(self) -> str:
        """The same for asks that are the same."""
        return json.dumps(self.to_json(), sort_keys=True)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(**{**data, "fixes": tuple(data["fixes"])})


ROUNDINGS = ("float32", "tfloat32", "float16", "bfloat16")
"""Coarser and coarser. float32 moves each weight by half a unit in its last place, at random."""
