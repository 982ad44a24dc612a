"""A simulated machine: programs with true step times for every set of fixes, and noise."""

import random
from collections.abc import Callable, Mapping

import numpy as np

from stepscope.analyze.run.document import InPlaceContest
from stepscope.fixes.contest import Contest
from stepscope.measure.prediction import Prediction
from stepscope.measure.trial.pool import Budget, TrialPool
from stepscope.measure.trial.record import Trial, TrialRequest
from stepscope.record.facts import AutoStop
from stepscope.record.fix import NOTHING_FOUND, FixOutcome, FixState, NotApplied
from stepscope.record.trial import TrialReason, TrialStatus
from stepscope.stats.paired import WARMING_STEPS, Blocks, Decision
from stepscope.tune.search.candidates import exclude_each_other

StepMs = Callable[[frozenset[str]], float]
Noise = Callable[[np.random.Generator, int], np.ndarray]


def apart(share: float, of_steps: float = 0.05) -> Noise:
    """Processes that differ by a share, and steps that do."""

    def factors(draw, steps):
        return np.exp(share * draw.standard_normal()) * (1 + of_steps * draw.standard_normal(steps))

    return factors


class Machine:
    """Callable as a `Run`. `step_ms` is the truth, `ends` says which fixes do not go well. It ends
    trials early as the real one does, after a quarter of their steps."""

    def __init__(
        self,
        step_ms: StepMs,
        *,
        noise: Noise | None = None,
        ends: Mapping[str, tuple[str, str]] | None = None,
        seed: int = 0,
        startup_s: float = 6.0,
        compile_s: float = 20.0,
        samples: Callable[[frozenset[str]], float] = lambda fixes: 32.0,
        told: Callable[[TrialRequest], dict] = lambda ask: {},
        stop_at: int | None = None,
    ) -> None:
        self.step_ms = step_ms
        self.asks: list[TrialRequest] = []
        self.trials: list[Trial] = []
        self._noise = noise or apart(0.01)
        self._ends = ends or {}
        self._draw = np.random.default_rng(seed)
        self._startup_s, self._compile_s = startup_s, compile_s
        self._samples, self._told, self._stop_at = samples, told, stop_at

    def __call__(self, ask: TrialRequest) -> Trial:
        if self._stop_at is not None and len(self.asks) >= self._stop_at:
            raise KeyboardInterrupt
        self.asks.append(ask)
        trial = self._made(ask)
        self.trials.append(trial)
        return trial

    def _made(self, ask: TrialRequest) -> Trial:
        if ask.contests is not None:
            return self._held(ask)
        for fix in ask.fixes:
            if fix in self._ends:
                status, why = self._ends[fix]
                return Trial(
                    ask,
                    len(self.asks),
                    TrialStatus(status),
                    TrialReason.PROGRAM_FAILED,
                    why,
                    fix,
                    seconds=self._startup_s,
                )
        fixes = frozenset(ask.fixes)
        first = not any(frozenset(one.request.fixes) == fixes for one in self.trials)
        times = self.step_ms(fixes) * self._noise(self._draw, ask.steps)
        whole_s = self.cost_s(fixes, ask.steps, first)
        number, slow_ms = len(self.asks), ask.slow_ms
        if slow_ms is not None and times[: ask.steps // 4].mean() > slow_ms:
            made = ask.steps // 4
            seconds = self.cost_s(fixes, made, first)
            if ask.limit_s is None or seconds <= ask.limit_s:
                slow, steps = TrialStatus.FAR_SLOWER, tuple(times[:made].tolist())
                why = {"reason": TrialReason.FAR_SLOWER, "step_ms": steps, "steps": made}
                return Trial(ask, number, slow, seconds=seconds, **why)
        if ask.limit_s is not None and whole_s > ask.limit_s:
            cut = TrialReason.OUT_OF_BUDGET
            return Trial(ask, number, TrialStatus.TIMED_OUT, cut, seconds=ask.limit_s)
        compiling = self._compile_s if any(one.startswith("compile") for one in fixes) else None
        more = {"compile_s": compiling, "samples_per_step": self._samples(fixes)}
        return Trial(
            ask,
            number,
            TrialStatus.OK,
            step_ms=tuple(times.tolist()),
            seconds=whole_s,
            **{"steps": ask.steps} | more | self._told(ask),
        )

    def _held(self, ask: TrialRequest) -> Trial:
        """Contests in one process: its pace is its own, and what differs are its steps."""
        process = _Process(self, ask)
        status, more = TrialStatus.OK, {"stopped": process.run()}
        broken = next((one for one in process.trying if one in self._ends), None)
        if broken is not None:
            status, more = TrialStatus(self._ends[broken][0]), {"detail": self._ends[broken][1]}
            more |= {"reason": TrialReason.PROGRAM_FAILED, "fix": broken}
        seconds = self._startup_s + process.now / 1e3
        own = self._told(ask).get("fixes", ())
        return Trial(
            ask,
            len(self.asks),
            status,
            steps=process.steps,
            seconds=seconds,
            fixes=(*own, *process.idle),
            contests=tuple(process.held),
            trying=process.trying,
            **more,
        )

    def cost_s(self, fixes: frozenset[str], steps: int, first: bool = True) -> float:
        """A second process finds in the compiler's cache what the first one compiled."""
        compiling = self._compile_s if any(one.startswith("compile") for one in fixes) else 0.0
        compiling *= 1.0 if first else 0.2
        return self._startup_s + compiling + steps * self.step_ms(fixes) / 1e3

    def pool(self, seconds: float = 1e6, **more) -> TrialPool:
        return TrialPool(Budget(self, seconds), TrialRequest(), **more)

    def predictor(self, error: float = 0.0, seed: int = 5, blind: tuple[str, ...] = ()):
        """Predictions that err by a share; none of those it is blind to."""
        draw = np.random.default_rng(seed)
        wrong: dict[tuple[str, ...], float] = {}

        def see(base, other):
            if any(one.partition("=")[0] in blind for one in set(other) - set(base)):
                return None
            factor = wrong.setdefault(tuple(other), float(np.exp(error * draw.standard_normal())))
            found = self.step_ms(frozenset(base)) / self.step_ms(frozenset(other)) * factor
            return Prediction(found, found / 1.1, found * 1.1)

        return see


class _Process:
    """Steps of one process with candidates switched on and off between them; also their clock."""

    def __init__(self, machine: Machine, ask: TrialRequest) -> None:
        self._machine, self._ask = machine, ask
        self._noise = machine._noise(machine._draw, _SERIES)
        self._draw = random.Random(len(machine.asks))
        self._kept = frozenset(ask.fixes)
        self._candidate: tuple[str, ...] = ()
        self._on = False
        self.now, self.steps = 0.0, 0
        self.held: list[InPlaceContest] = []
        self.idle: list[FixOutcome] = []
        self.trying: tuple[str, ...] = ()

    def run(self) -> AutoStop | None:
        """Why it ended; None: the program did."""
        ends, contests = self._machine._ends, self._ask.contests
        for _ in range(WARMING_STEPS):
            self._step()
        begun = self.now
        for candidate in contests.candidates:
            if self._with(candidate) == self._kept:
                continue
            if self.now - begun >= contests.seconds * 1e3:
                return AutoStop.OUT_OF_TIME
            if any(ends.get(one, ("",))[0] == "not_applicable" for one in candidate):
                self._no_effect(candidate)
                continue
            self.trying = candidate
            if any(one in ends for one in candidate) or not self._contest(candidate):
                return None
            self.trying = ()
        return AutoStop.DONE

    def _contest(self, candidate: tuple[str, ...]) -> bool:
        """Whether the program is long enough for it."""
        self._candidate, begun, before = candidate, self.now, self.steps
        step_ms = self._machine.step_ms(self._kept)
        most = int(self._ask.contests.each_s * 1e3 / step_ms)
        contest = Contest(self._switch, self, Blocks.of(step_ms), self._draw, most)
        contest.begin()
        result = None
        while result is None:
            if self.steps >= self._ask.steps:
                return False
            self._step()
            result = contest.step_ended()
        self._on = False
        if result.gains:
            self._kept = self._with(candidate)
        told = {one: getattr(result, one) for one in ("pairs", "before_ms", "after_ms")}
        ratio, decided = result.ratio, result.decision is not Decision.OPEN
        seconds = (self.now - begun) / 1e3
        self.held.append(
            InPlaceContest(
                [*candidate],
                result.gains,
                ratio.ratio,
                ratio.low,
                ratio.high,
                steps=self.steps - before,
                seconds=seconds,
                decided=decided,
                **told,
            )
        )
        return True

    def _no_effect(self, candidate: tuple[str, ...]) -> None:
        for one in candidate:
            if one in self._machine._ends:
                name, _, value = one.partition("=")
                why = (NotApplied(NOTHING_FOUND, text=self._machine._ends[one][1]),)
                idle = FixState.NOT_APPLICABLE
                self.idle.append(FixOutcome(name, value or None, idle, not_applied=why))

    def _with(self, candidate: tuple[str, ...]) -> frozenset[str]:
        left = (one for one in self._kept if not any(exclude_each_other(one, c) for c in candidate))
        return frozenset((*left, *candidate))

    def _switch(self, on: bool) -> None:
        self._on = on

    def _step(self) -> None:
        fixes = self._with(self._candidate) if self._on else self._kept
        factor = float(self._noise[self.steps % _SERIES])
        self.now += self._machine.step_ms(fixes) * factor
        self.steps += 1

    def mark(self) -> float:
        return self.now

    def elapsed_ms(self, begin: float, end: float) -> float:
        return end - begin


_SERIES = 20_000  # steps of noise


def slow_program(fixes: frozenset[str]) -> float:
    """Samples made in the loop, waits for the device every step: workers are most of it."""
    workers = next((int(one[8:]) for one in fixes if one.startswith("workers=")), 0)
    device = 16.0 * (0.6 if "amp=bf16" in fixes else 0.85 if "tf32=on" in fixes else 1.0)
    host = 6.0 * (1.1 if "amp=bf16" in fixes else 1.0)
    copies = 0.5 if "pin" in fixes else 2.5
    compute = max(host, device) if "nosync" in fixes else host + device
    data = 40.0
    if not workers:
        return data + copies + compute
    return max(data * 1.2 / workers, copies + compute)


def launch_bound(fixes: frozenset[str]) -> float:
    """Small kernels: half precision costs host time until a graph takes that away."""
    device = 2.4 * (0.6 if "amp=bf16" in fixes else 1.0)
    device *= 0.85 if {"channels_last", "amp=bf16"} <= fixes else 1.0
    device -= 0.2 if "fused_optimizer" in fixes else 0.0
    host = 6.9 + (0.8 if "amp=bf16" in fixes else 0.0) - (0.6 if "fused_optimizer" in fixes else 0)
    if "cuda_graph" in fixes:
        host = 0.4
    if any(one.startswith("compile") for one in fixes):
        host, device = 1.5, 0.9 * device
    return max(host, device) + 0.1 * min(host, device)


def compute_bound(fixes: frozenset[str]) -> float:
    """Large products and convolutions: arithmetic decides, launches do not matter."""
    step = 118.0
    if "amp=bf16" in fixes:
        step *= 0.62
        step *= 0.78 if "channels_last" in fixes else 1.0
    else:
        step *= 1.02 if "channels_last" in fixes else 1.0
        step *= 0.9 if "tf32=on" in fixes else 1.0
    step *= 0.75 if any(one.startswith("compile") for one in fixes) else 1.0
    step *= 1.2 if "checkpointing" in fixes else 1.0
    return step - (1.0 if "fused_optimizer" in fixes else 0.0)


def untouched(fixes: frozenset[str]) -> float:
    """Nothing helps."""
    return 10.0
