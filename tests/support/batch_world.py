"""A simulated program and machine: throughput that saturates, memory that ends."""

from dataclasses import dataclass, field

from stepscope.batch.program import ProgramFacts
from stepscope.measure.trial.record import Trial, TrialRequest
from stepscope.record.fix import (
    EPOCH_TOO_SMALL,
    LOADER,
    NOTHING_FOUND,
    FixOutcome,
    FixState,
    NotApplied,
)
from stepscope.record.fix_words import sentence
from stepscope.record.trial import TrialReason, TrialStatus

GIB = 2.0**30

_NO_BATCHES = "no DataLoader forms batches"


@dataclass
class World:
    """`run` and `look` stand in for trials; every process is deterministic."""

    own: int = 64
    samples: int | None = 50_000
    device: str = "cuda"
    memory: float = 140 * GIB
    fixed: float = 2 * GIB
    each: float = 0.09 * GIB
    top: float = 2600.0
    half: float = 10.0
    """Batch size at which half of the top throughput is reached."""
    falls_from: int | None = None
    breaks_at: int | None = None
    applies: bool = True
    startup_s: float = 5.0
    noise: tuple[float, ...] = (1.0, 1.004, 0.997)
    fixes: dict[str, str] = field(default_factory=dict)
    """Extra fixes that do not apply, with the reason."""
    optimizers: tuple[tuple[str, float | None], ...] = (("SGD", 0.1),)
    what: str = "training"
    asks: list[TrialRequest] = field(default_factory=list)

    @property
    def tried(self) -> list[int]:
        return [self._batch(ask) for ask in self.asks]

    def _batch(self, ask: TrialRequest) -> int:
        sizes = [int(fix.removeprefix("batch=")) for fix in ask.fixes if fix.startswith("batch=")]
        return sizes[0] if sizes else self.own

    def rate(self, batch: int) -> float:
        slower = 0.6 if self.falls_from is not None and batch >= self.falls_from else 1.0
        return slower * self.top * batch / (batch + self.half)

    def bytes(self, batch: int) -> float:
        return self.fixed + self.each * batch

    def run(self, ask: TrialRequest) -> Trial:
        batch = self._batch(ask)
        again = self.tried.count(batch)
        self.asks.append(ask)
        number = len(self.asks)
        for fix, why in self.fixes.items():
            if fix in ask.fixes:
                return Trial(
                    ask, number, TrialStatus.NOT_APPLICABLE, TrialReason.FIX_NOT_APPLIED, why, fix
                )
        if batch != self.own and not self.applies:
            nothing = NotApplied(NOTHING_FOUND, text=_NO_BATCHES)
            return self._unfit(ask, TrialReason.FIX_NOT_APPLIED, nothing)
        if self.samples is not None and batch > self.samples:
            few = NotApplied(EPOCH_TOO_SMALL, LOADER, value=self.samples)
            return self._unfit(ask, TrialReason.EPOCH_TOO_SMALL, few)
        if self.bytes(batch) > 0.97 * self.memory:
            why = f"a batch of {batch} does not fit into memory; try a smaller one"
            return Trial(
                ask,
                number,
                TrialStatus.OUT_OF_MEMORY,
                TrialReason.ALLOCATION_FAILED,
                why,
                "batch",
                seconds=self.startup_s,
            )
        if self.breaks_at is not None and batch >= self.breaks_at:
            why = "the program relies on batches of 64"
            return Trial(ask, number, TrialStatus.BROKE, TrialReason.FIX_BROKE, why, "batch")
        step_ms = batch * 1e3 / self.rate(batch) * self.noise[again % len(self.noise)]
        return Trial(
            ask,
            number,
            TrialStatus.OK,
            step_ms=(step_ms,) * (ask.steps // 2),
            samples_per_step=float(batch),
            steps=ask.steps,
            seconds=self.startup_s + ask.steps * step_ms / 1e3,
            peak_memory_bytes=self.bytes(batch),
            energy_j_per_step=0.7 * step_ms if self.device == "cuda" else None,
            what=self.what,
        )

    def _unfit(self, ask: TrialRequest, reason: TrialReason, record: NotApplied) -> Trial:
        outcome = FixOutcome("batch", None, FixState.NOT_APPLICABLE, not_applied=(record,))
        return Trial(
            ask,
            len(self.asks),
            TrialStatus.NOT_APPLICABLE,
            reason,
            sentence(record),
            f"batch={self._batch(ask)}",
            seconds=self.startup_s,
            fixes=(outcome,),
        )

    def look(self, trial: Trial) -> ProgramFacts:
        return ProgramFacts(
            device=self.device,
            device_name="NVIDIA H200" if self.device == "cuda" else "AMD EPYC",
            memory_bytes=self.memory,
            batch=self.own,
            samples=self.samples,
            drop_last=False,
            buffer=0,
            optimizers=self.optimizers,
        )
