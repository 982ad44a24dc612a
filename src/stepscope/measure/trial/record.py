"""One trial: its request, and the record of how it ended."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct, structs

from stepscope.analyze.run.document import InPlaceContest
from stepscope.record.facts import AutoStop
from stepscope.record.fix import FixOutcome
from stepscope.record.trial import TrialNote, TrialReason, TrialStatus


class ContestRequest(Struct, frozen=True):
    """What to compare inside the process of a trial, one after the other."""

    candidates: tuple[tuple[str, ...], ...]
    """Sets of fixes, each switched on and off between steps as one."""
    allow: str
    """The coarsest kind of fix that may stay on."""
    seconds: float
    """For all contests, and for each of them."""
    each_s: float


class TrialRequest(Struct, frozen=True, rename={"draws_per_batch": "held"}):
    """A request for one trial: the program once, in its own process, for this many steps."""

    fixes: tuple[str, ...] = ()
    """As `--fix` takes them, in the order they were found to help."""
    steps: int = 40
    seed: int = 0
    """0: the program's own seeds (0 if it sets none); k: other seeds, equal in all trials."""
    perturb: str | None = None
    """A control: weights are rounded once to this dtype before the first step. One of
    `ROUNDING_DTYPES`."""
    proof: bool = False
    """Also record gradient norms, learning rates, and outputs of an inference program."""
    draws_per_batch: bool = False
    """A batch's random draws depend on the batch alone, also in workers."""
    window: bool = False
    """Record kernels, for findings; such a trial's speed is not compared."""
    patched: str | None = None
    """A unified diff applied to the scratch copy before the program starts."""
    limit_s: float | None = None
    """The budget left for it: it is cut off there. None: no limit."""
    slow_ms: float | None = None
    """The mean step time from which on it is ended early, as hopelessly slow. None: never."""
    contests: ContestRequest | None = None
    """Compare candidates with its own fixes as it runs; its speed is not compared then."""

    def key(self) -> bytes:
        """Equal for equal requests, whenever they would have been cut off."""
        held = self.contests
        untimed = held and structs.replace(held, seconds=0.0, each_s=0.0)
        kept = structs.replace(self, limit_s=None, slow_ms=None, contests=untimed)
        return msgspec.json.encode(kept)


ROUNDING_DTYPES = ("float32", "tfloat32", "float16", "bfloat16")
"""From fine to coarse. float32 moves each weight by half a unit in its last place, at random."""


class ProofRecord(Struct, frozen=True, omit_defaults=True):
    """What a proof compares besides losses. Steps count from 1; None: unknown."""

    grad_norms: tuple[float | None, ...] = ()  # of the first steps
    rates: tuple[float | None, ...] = ()  # the learning rate of each step
    loads: tuple[int, ...] = ()
    """Steps after which a state was loaded; the other events likewise."""
    epochs: tuple[int, ...] = ()
    evaluations: tuple[int, ...] = ()
    saves: tuple[int, ...] = ()
    short_batches: tuple[int, ...] = ()  # steps with fewer samples than usual
    batches: tuple[int | None, ...] = ()
    """A checksum of each batch, if random draws depend on the batch alone."""
    outputs: str | None = None  # the file with an inference program's outputs
    ending: bool = False
    """Whether its folder holds its final state, after these steps: see `trial.final_state`."""


class Trial(Struct, frozen=True, rename={"request": "ask", "fix": "blame"}):
    """The record of one trial, as in the journal. None: unknown."""

    request: TrialRequest
    number: int  # counts from 1; its run folder is `trials/<number:04d>`
    status: TrialStatus
    reason: TrialReason | None = None  # None if it is ok
    detail: str | None = None  # details in the program's or the fix's own words
    fix: str | None = None  # the fix that did not apply or broke; None if no single one did
    code: int | None = None  # the signal or exit code that ended it
    step_ms: tuple[float, ...] = ()
    """Steady step times, wall clock, epoch starts included; warm-up, the first rounds of loader
    workers, compilation, evaluation and checkpoints left out. Their mean is the speed. Empty if
    there were too few, in a trial that is still ok for its losses."""
    steady: int = 0  # how many steps were steady, even if too few for `step_ms`
    samples_per_step: float | None = None
    steps: int = 0  # all steps, including warm-up
    seconds: float = 0.0  # wall time of all of it, the scratch copy and reading included
    shared_s: float = 0.0  # beside them: starting what later trials use too
    compile_s: float | None = None
    peak_memory_bytes: float | None = None
    gpu_busy: float | None = None  # 0 to 1
    energy_j_per_step: float | None = None
    fixes: tuple[FixOutcome, ...] = ()  # what became of each fix
    losses: tuple[float | None, ...] = ()
    """One per step, bit for bit as the program computed them."""
    proof: ProofRecord = ProofRecord()  # empty unless `proof` was requested
    what: str = "training"  # the kind of its steps: training, inference or batches
    notes: tuple[TrialNote, ...] = ()  # throttling, other processes on the GPU, an unstable series
    contests: tuple[InPlaceContest, ...] = ()
    """Those held in its process that have a result, in order; each on top of those kept before."""
    trying: tuple[str, ...] = ()
    """The candidate whose contest was under way at its end."""
    stopped: AutoStop | None = None
    """Why no more were held; None: it ended first, or none were asked for."""

    @property
    def ok(self) -> bool:
        return self.status is TrialStatus.OK

    @property
    def timed(self) -> bool:
        """Whether it is ok and its speed is known."""
        return self.ok and bool(self.step_ms)

    @property
    def mean_ms(self) -> float:
        """Wall time over steps; only for a `timed` trial."""
        return sum(self.step_ms) / len(self.step_ms)

    @property
    def failure(self) -> str:
        """Why it is not ok, or not timed, in one line for progress, errors and the story."""
        detail = self.detail or ""
        match self.reason:
            case TrialReason.HUNG:
                return f"no end after {self.seconds:.0f} s"
            case TrialReason.OUT_OF_BUDGET:
                return f"cut off after {self.seconds:.0f} s: the budget ends"
            case TrialReason.FAR_SLOWER:
                made = f"{self.steps} of {self.request.steps} steps"
                return f"{self.mean_ms:.3g} ms per step: ended after {made}"
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
            case TrialReason.NOT_FINITE:
                return "a loss is not finite"
            case TrialReason.NO_SAMPLE_COUNT:
                return "the steps do not show how many samples they take"
            case None if self.ok:
                return "too few steps"
            case _:
                return detail or self.status.label


Trials = Sequence[Trial]
RunTrial = Callable[[TrialRequest], Trial]
"""Runs a trial and returns its record. Raises StepscopeError only if the whole tune must end (a
write outside the scratch copy, a full disk), KeyboardInterrupt on a termination signal."""
