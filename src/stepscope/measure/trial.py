"""One trial: what is asked of it, and the record of what became of it."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from stepscope.record.fix import FixOutcome
from stepscope.record.fix_words import outcome_json


@dataclass(frozen=True, slots=True)
class TrialRequest:
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


ROUNDING_DTYPES = ("float32", "tfloat32", "float16", "bfloat16")
"""Coarser and coarser. float32 moves each weight by half a unit in its last place, at random."""


OK = "ok"
STATUSES = (OK, "not_applicable", "broke", "out_of_memory", "failed", "timed_out", "wrote_outside")


@dataclass(frozen=True, slots=True)
class Trial:
    """The record of one trial, as the journal keeps it. None: not known."""

    ask: TrialRequest
    number: int
    """Trials count from 1; its run folder is `trials/<number:04d>`."""
    status: str
    """One of STATUSES: not_applicable where a fix of the ask took hold of nothing (all others may
    have), broke where a fix stopped the program, wrote_outside where the program would have
    written outside its scratch copy."""
    why: str | None = None
    """One line for every status but ok."""
    blame: str | None = None
    """The fix that did not apply or broke; None where no single one did."""
    step_ms: tuple[float, ...] = ()
    """Steady step times, wall clock, epoch starts included; warm-up, the first rounds of loader
    workers, compilation, evaluation and checkpoints left out. Their mean is the speed. Empty
    where there were too few of them, of a trial that is ok all the same for its losses."""
    samples_per_step: float | None = None
    steps: int = 0
    """All steps made, warm-up included."""
    seconds: float = 0.0
    """Wall time of the whole process."""
    compile_s: float | None = None
    peak_memory_bytes: float | None = None
    gpu_busy: float | None = None
    """0 to 1."""
    energy_j_per_step: float | None = None
    fixes: tuple[FixOutcome, ...] = ()
    """What became of each fix."""
    losses: tuple[float | None, ...] = ()
    """One a step from the first; bit for bit as the program computed them."""
    proof: dict[str, Any] = field(default_factory=dict)
    """For asks with `proof`: grad_norms (first steps), rates (learning rate a step), epochs,
    evaluations, saves (steps after which each occurred), short_batches (steps whose batch was
    smaller), outputs (file name of kept outputs, inference only)."""
    what: str = "training"
    """training, inference or batches: what its steps are."""
    notes: tuple[str, ...] = ()
    """Throttling, other processes on the GPU, an unstable series."""

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def mean_ms(self) -> float:
        """Wall time over steps. Only of a trial that is ok."""
        return sum(self.step_ms) / len(self.step_ms)

    @property
    def samples_per_s(self) -> float | None:
        per_step = self.samples_per_step
        return None if per_step is None else per_step * 1e3 / self.mean_ms

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "fixes": [outcome_json(one) for one in self.fixes]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        several = ("step_ms", "losses", "notes")
        return cls(
            **{
                **data,
                "ask": TrialRequest.from_json(data["ask"]),
                "fixes": tuple(map(FixOutcome.from_json, data["fixes"])),
                **{name: tuple(data[name]) for name in several},
            }
        )


RunTrial = Callable[[TrialRequest], Trial]
"""Runs a trial and keeps its record. Raises StepscopeError only for what ends the whole tune: a
write outside the scratch copy, a full disk; KeyboardInterrupt when told to end."""
