"""One trial: what is requested of it, and the record of how it ended."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from stepscope.record.fix import FixOutcome
from stepscope.record.trial import TrialNote, TrialReason, TrialStatus


class TrialRequest(Struct, frozen=True, rename={"draws_per_batch": "held"}):
    """One trial: the program once, in a process of its own, for so many steps."""

    fixes: tuple[str, ...] = ()
    """As `--fix` takes them, in the order in which they were found to help."""
    steps: int = 40
    seed: int = 0
    """0: the program's own seeds (0 imposed where it sets none); k: others, the same for all."""
    perturb: str | None = None
    """The weights rounded once to this dtype before the first step: a control. One of
    `ROUNDING_DTYPES`."""
    proof: bool = False
    """Besides losses: gradient norms, learning rates, and outputs of an inference program."""
    draws_per_batch: bool = False
    """What is drawn at random for a batch follows from the batch alone, also in workers."""
    window: bool = False
    """With kernel-level recording, for findings; such a trial's speed is not compared."""
    patched: str | None = None
    """A unified diff applied to the scratch copy before the program starts."""

    def key(self) -> bytes:
        """The same for equal requests."""
        return msgspec.json.encode(self)


ROUNDING_DTYPES = ("float32", "tfloat32", "float16", "bfloat16")
"""Coarser and coarser. float32 moves each weight by half a unit in its last place, at random."""


class ProofRecord(Struct, frozen=True, omit_defaults=True):
    """What a proof compares besides losses. Steps count from 1; None: not known."""

    grad_norms: tuple[float | None, ...] = ()  # of the first steps
    rates: tuple[float | None, ...] = ()  # the learning rate of each step
    loads: tuple[int, ...] = ()
    """Steps after which a state was loaded; the same for those that follow."""
    epochs: tuple[int, ...] = ()
    evaluations: tuple[int, ...] = ()
    saves: tuple[int, ...] = ()
    short_batches: tuple[int, ...] = ()  # steps with fewer samples than usual
    batches: tuple[int | None, ...] = ()
    """A checksum of each batch, where random draws follow from the batch alone."""
    outputs: str | None = None  # the file with outputs of an inference program
    ending: bool = False
    """Whether its folder tells what it ended with, after these steps: see `trial.ending`."""


class Trial(Struct, frozen=True, rename={"request": "ask", "fix": "blame"}):
    """The record of one trial, as the journal keeps it. None: not known."""

    request: TrialRequest
    number: int  # trials count from 1; its run folder is `trials/<number:04d>`
    status: TrialStatus
    reason: TrialReason | None = None  # None where it is ok
    detail: str | None = None  # the program's or the fix's own words about the reason
    fix: str | None = None  # the fix that did not apply or broke; None where no single one did
    code: int | None = None  # the signal or the exit code that ended it
    step_ms: tuple[float, ...] = ()
    """Steady step times, wall clock, epoch starts included; warm-up, the first rounds of loader
    workers, compilation, evaluation and checkpoints left out. Their mean is the speed. Empty
    where there were too few of them, of a trial that is ok all the same for its losses."""
    steady: int = 0  # how many steps were steady, also where they were too few for `step_ms`
    samples_per_step: float | None = None
    steps: int = 0  # all steps made, warm-up included
    seconds: float = 0.0  # wall time of the whole process
    compile_s: float | None = None
    peak_memory_bytes: float | None = None
    gpu_busy: float | None = None  # 0 to 1
    energy_j_per_step: float | None = None
    fixes: tuple[FixOutcome, ...] = ()  # what became of each fix
    losses: tuple[float | None, ...] = ()
    """One a step from the first; bit for bit as the program computed them."""
    proof: ProofRecord = ProofRecord()  # empty unless the request has `proof`
    what: str = "training"  # training, inference or batches: what its steps are
    notes: tuple[TrialNote, ...] = ()  # throttling, other processes on the GPU, an unstable series

    @property
    def ok(self) -> bool:
        return self.status is TrialStatus.OK

    @property
    def timed(self) -> bool:
        """Whether it is ok and its speed is known."""
        return self.ok and bool(self.step_ms)

    @property
    def mean_ms(self) -> float:
        """Wall time over steps. Only of a trial that is `timed`."""
        return sum(self.step_ms) / len(self.step_ms)

    @property
    def failure(self) -> str:
        """Why it is not ok, or not timed, in one line: for progress, errors and the story."""
        detail = self.detail or ""
        match self.reason:
            case TrialReason.HUNG:
                return f"no end after {self.seconds:.0f} s"
            case TrialReason.HOST_MEMORY_FULL:
                return "killed by the kernel: the machine ran out of memory"
            case TrialReason.KILLED:
                return f"killed by signal {self.code}: {detail}".removesuffix(": ")
            case TrialReason.PROGRAM_FAILED:
                return detail or f"exit code {self.code}"
            case TrialReason.NO_STEPS:
                return detail or "no steps seen"
            case TrialReason.TOO_FEW_STEADY:
                wanted = self.request.steps
                made = f"{self.steps} of {wanted}" if self.steps < wanted else f"{self.steps}"
                return f"{made} steps, {self.steady} of them steady: too few to compare"
            case TrialReason.NO_SAMPLE_COUNT:
                return "the steps do not show how many samples they take"
            case None if self.ok:
                return "too few steps"
            case _:
                return detail or self.status.label


Trials = Sequence[Trial]
RunTrial = Callable[[TrialRequest], Trial]
"""Runs a trial and keeps its record. Raises StepscopeError only for what ends the whole tune: a
write outside the scratch copy, a full disk; KeyboardInterrupt on a signal to end."""
