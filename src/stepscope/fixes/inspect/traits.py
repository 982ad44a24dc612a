"""Traits of a dataset, collate function, sampler or block, and their consequences."""

from dataclasses import dataclass, field
from typing import Any

from stepscope.fixes.inspect.state_digest import StateSlot
from stepscope.fixes.lazy import torch
from stepscope.record.fix import DataChange, Trait, TraitKind, Variation


@dataclass(slots=True)
class DatasetTraits:
    """The first trait seen of each kind, or None."""

    draws: Trait | None = None
    """It draws random numbers."""
    unknown: Trait | None = None
    """Something in it could not be inspected."""
    keeps: Trait | None = None
    """It changes itself from one sample to the next. A container it fills with what it computes
    from other things is a memo, a global it only adds to a log."""
    sums: Trait | None = None
    """It sums tensors, which rounds differently with another number of threads."""
    cuda: Trait | None = None
    """It holds or makes things on the GPU, which forked processes cannot use."""
    shared: Trait | None = None
    """It holds a tensor in memory that processes share."""
    handle: Trait | None = None
    """It holds an open file or connection, which processes cannot share."""
    splits: bool = False
    """It asks which worker it runs in."""
    logs: Trait | None = None
    """It adds to a global that it does not read."""
    effects: Trait | None = None
    """It prints, logs or opens files."""
    given: Trait | None = None
    """It changes what it is given in place."""
    caches: Trait | None = None
    """It calls something that remembers results where they cannot be seen."""
    generators: list[Any] = field(default_factory=list)
    """Random generators it uses, other than those of modules."""
    roots: list[Any] = field(default_factory=list)
    """The objects inspected."""
    slots: dict[tuple[int, str], StateSlot] = field(default_factory=dict)
    """Globals, class attributes, variables of enclosing functions and defaults its code names."""
    memos: set[str] = field(default_factory=set)
    """Names of containers in which it keeps what it computed."""

    def shares(self, collate: Any) -> Trait | None:
        """What remembers samples that the program may get and change; None: nothing does. What
        torch's own collating makes is new."""
        if collate is torch.utils.data.default_collate:
            return None
        return self.caches or (Trait(TraitKind.USES, min(self.memos)) if self.memos else None)

    def varies(self) -> Variation | None:
        """What may differ between two processes or two times; None if samples are the same."""
        if self.draws:
            return Variation(DataChange.DRAWS, because=self.draws)
        if self.unknown:
            return Variation(DataChange.DRAWS, certain=False, because=self.unknown)
        if self.keeps:
            return Variation(DataChange.SAMPLES, certain=False, because=self.keeps)
        return None
