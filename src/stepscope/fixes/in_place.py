"""Contests in a running program, one after the other: what gains stays on, and the next ones are
held on top of it. `run --auto` and `tune` say what is tried, when, and what follows a doubt.
"""

from collections import deque
from collections.abc import Sequence
from math import inf
from random import Random
from time import monotonic_ns
from typing import Final

from stepscope.fixes.apply import explain_failures, install_fix, live_program
from stepscope.fixes.base import FixContext, LiveProgram
from stepscope.fixes.contest import Clock, Contest, ContestResult, HostClock, StreamClock
from stepscope.fixes.lazy import torch
from stepscope.fixes.registry import exclude_each_other, in_order, parse_fixes
from stepscope.probe.observer import Observer
from stepscope.probe.step_rule import NEVER
from stepscope.record.facts import AutoFact, AutoStop, ContestFact
from stepscope.record.fix import INSTALL_FAILED, FixKind, FixState, NotApplied
from stepscope.record.probe_options import ContestOptions
from stepscope.stats.paired import WARMING_STEPS, Blocks, Decision

KINDS: Final = [*FixKind]
"""The most exact first."""
_TIMED_STEPS = 8  # the last of them show how long a step takes
_WATCHED_EVERY = 16  # steps, once all is decided: what is kept may still turn out to be in doubt
_SEED = 25
IN_ORDER: Final = frozenset(
    (AutoStop.DONE, AutoStop.NOTHING_TO_TRY, AutoStop.TOO_SHORT, AutoStop.OUT_OF_TIME)
)
"""What leaves on what was kept."""

Candidate = tuple[FixContext, ...]
"""Fixes switched as one."""


class InPlace:
    """Tries candidates between steps and keeps what gains."""

    for_tune = False

    def __init__(self, observer: Observer, allow: FixKind) -> None:
        self._observer = observer
        self._core = observer.core
        self._allow = allow
        self._least_exact = KINDS.index(allow)
        self._draw = Random(_SEED)  # never the program's
        self._contexts: dict[str, FixContext] = {}
        self._candidates: deque[Candidate] = deque()
        self._kept: list[FixContext] = []
        self._trying: Candidate = ()
        self._replaced: Candidate = ()
        """What is kept and does not go with that: off while it is on."""
        self._contest: Contest | None = None
        self._clock: Clock = HostClock()
        self._contest_ns = self._timed_ns = 0  # when they began
        self._step_ms = 0.0
        self._acting = self._candidate_on = False  # whether any fix is on; what is tried just now
        self._effective = False  # whether the candidate was seen to change anything
        self._was_finite: bool | None = None
        """Whether all losses were before any fix was on; None: none has been."""
        self._over = False

    def install(self) -> None:
        """Put in place, switched off, what may be tried. Before the program's first line."""
        core = self._core
        core.on_step.append(self._step_ended)
        core.on_end.append(self._tell)
        core.fixing = True  # every step is clocked alike until all is decided
        core.facts.write(self._fact(None))
        try:
            self._install_candidates()
        except Exception as problem:
            self._end(AutoStop.FIX_FAILED, repr(problem))

    def _install_candidates(self) -> None:
        raise NotImplementedError

    def _step_ended(self, step: int) -> int:
        """After a step: from which one on to be called again."""
        following = step + 1
        try:
            if doubt := self._doubt():
                self._end(doubt)
            elif not self._over:
                following = self._go_on(step)
        except Exception as problem:
            self._end(AutoStop.FIX_FAILED, repr(problem))
        if self._over:
            return step + _WATCHED_EVERY if self._kept else NEVER
        return following

    def _go_on(self, step: int) -> int:
        """The next step of what is under way; the same."""
        if step < WARMING_STEPS:
            return self._warm_up(step)
        if self._contest is not None:
            result = self._contest.step_ended()
            if result is not None:
                self._decided(result)
            elif self._gives_up(self._contest):
                self._drop()
            else:
                return step + 1
        elif not self._step_ms:
            self._warmed_up()
        return self._next(step)

    def _gives_up(self, contest: Contest) -> bool:
        """Whether an open contest ends without a result."""
        return bool(contest.blocks_tried) and not self._took_effect()

    def _doubt(self) -> AutoStop | None:
        """Why nothing may be on in this program any more."""
        core, distributed = self._core, torch.distributed
        if self._over and not self._kept:
            return None
        if core.compiles:
            return AutoStop.COMPILES
        if core.captures:
            return AutoStop.CAPTURES
        if distributed.is_available() and distributed.is_initialized():
            return AutoStop.DISTRIBUTED
        if self._was_finite and core.log.not_finite:
            return AutoStop.NOT_FINITE
        return None

    def _warm_up(self, step: int) -> int:
        begin = WARMING_STEPS - _TIMED_STEPS
        if step <= begin:
            self._timed_ns = monotonic_ns()
        return begin if step < begin else WARMING_STEPS

    def _warmed_up(self) -> None:
        """How long a step takes is known by now."""
        self._step_ms = max(1e-3, (monotonic_ns() - self._timed_ns) / 1e6 / _TIMED_STEPS)
        if self._core.device.active:
            self._clock = StreamClock()

    def _live(self) -> LiveProgram:
        return live_program(self._core, self._observer.config)

    def _blocks(self) -> Blocks:
        loader = self._live().loader
        return Blocks.of(self._step_ms, 0 if loader is None else loader.loader.num_workers)

    def _next(self, step: int) -> int:
        """Begin the next contest, or end; from which step on to be called again."""
        raise NotImplementedError

    def _excluded(self, candidate: Candidate) -> bool:
        """Whether the program has applied it meanwhile, or what does not go with it."""
        applied = self._core.placed
        names = [one.fix.name for one in candidate]
        return any(
            name in applied or any(exclude_each_other(name, other) for other in applied)
            for name in names
        )

    def _begin(
        self, candidate: Candidate, blocks: Blocks, most_steps: int | None, most_s: float = inf
    ) -> None:
        self._trying = candidate
        self._replaced = tuple(
            kept
            for kept in self._kept
            if any(exclude_each_other(kept.fix.name, one.fix.name) for one in candidate)
        )
        self._effective = False
        self._contest_ns = monotonic_ns()
        draw = self._draw
        self._contest = Contest(self._switch, self._clock, blocks, draw, most_steps, most_s)
        self._core.facts.write(self._fact(None))
        self._contest.begin()

    def _switch(self, on: bool) -> None:
        if on and self._was_finite is None:
            self._was_finite = not self._core.log.not_finite
        self._candidate_on = on
        self._acting = on or bool(self._kept)
        coming, going = self._trying, self._replaced
        if not on:
            coming, going = going, coming
        for context in going:
            context.switch(False)
        for context in coming:
            context.switch(True)

    def _decided(self, result: ContestResult) -> None:
        """A contest is over: keep the candidate, or have it off."""
        tried, ratio = self._trying, result.ratio
        kept = result.gains and all(self._did_as_allowed(one) for one in tried)
        if kept:
            self._kept = [one for one in self._kept if one not in self._replaced] + [*tried]
            self._step_ms = result.after_ms
        else:
            self._switch(False)
        fact = ContestFact(
            candidate=self._as_asked(tried),
            kept=kept,
            decided=result.decision is not Decision.OPEN,
            ratio=ratio.ratio,
            low=ratio.low,
            high=ratio.high,
            pairs=result.pairs,
            steps=result.steps,
            seconds=(monotonic_ns() - self._contest_ns) / 1e9,
            before_ms=result.before_ms,
            after_ms=result.after_ms,
        )
        self._contest, self._trying = None, ()
        self._core.facts.write(fact)
        self._core.facts.write(self._fact(None))
        self._tried(tried, fact)

    def _tried(self, candidate: Candidate, fact: ContestFact | None) -> None:
        """A contest has ended. `fact`: how; None without a result."""

    def _took_effect(self) -> bool:
        """Whether what was on in a block has changed anything."""
        self._effective = self._effective or any(one.outcome.applied for one in self._trying)
        return self._effective

    def _drop(self) -> None:
        """End a contest without a result."""
        tried = self._trying
        self._switch(False)
        self._contest, self._trying = None, ()
        self._tried(tried, None)

    def _did_as_allowed(self, tried: FixContext) -> bool:
        """Whether it took effect, and changed no more than it may."""
        outcome = tried.outcome
        exact = outcome.kind is not None and KINDS.index(outcome.kind) <= self._least_exact
        return outcome.state is FixState.APPLIED and exact

    def _end(self, why: AutoStop, detail: str | None = None) -> None:
        """Try nothing any more. Unless all went well, switch everything off."""
        self._over = True
        trying = self._trying
        if why not in IN_ORDER:
            self._all_off()
        if not self._kept:
            self._core.fixing = bool(self._core.fixes)
        self._trying = trying
        self._core.facts.write(self._fact(why, detail))

    def _all_off(self) -> None:
        """The program goes on as written."""
        self._over, self._acting, self._contest = True, False, None
        self._kept.clear()
        for context in self._contexts.values():
            try:
                context.switch(False)
            except Exception as problem:
                context.not_applied(NotApplied(INSTALL_FAILED, error=repr(problem)))

    def _tell(self) -> None:
        """The program is over: what was kept is told of like other fixes."""
        for context in self._kept:
            context.tell()

    def _fact(self, stopped: AutoStop | None, detail: str | None = None) -> AutoFact:
        return AutoFact(
            allow=self._allow.value,
            kept=self._as_asked(self._kept),
            stopped=stopped,
            detail=detail,
            trying=self._as_asked(self._trying),
            for_tune=self.for_tune,
        )

    def _as_asked(self, fixes: Sequence[FixContext]) -> list[str]:
        """As `--fix` takes them."""
        return [
            one.fix.name if one.value is None else f"{one.fix.name}={one.value}" for one in fixes
        ]


class TuneContests(InPlace):
    """The contests that `tune` asks for. The program ends with the last of them, or with the first
    doubt; what else goes wrong ends it as it would end a trial."""

    for_tune = True

    def __init__(self, observer: Observer, options: ContestOptions) -> None:
        super().__init__(observer, options.allow)
        self._options = options
        self._until_ns = 0

    def _install_candidates(self) -> None:
        """A fix is there with one value only: candidates with another are not tried."""
        asked = [text for one in self._options.candidates for text in one]
        first = {text.partition("=")[0]: text for text in reversed(asked)}
        for text in in_order(first.values()):
            [(fix, value)] = parse_fixes([text])
            context = FixContext(fix, self._observer.seams, value, on=False)
            if install_fix(context):
                self._contexts[text] = context
            else:
                context.tell()
        explain_failures(self._contexts.values(), self._observer.seams)
        for one in self._options.candidates:
            if {*one} <= self._contexts.keys():
                self._candidates.append(tuple(self._contexts[text] for text in one))

    def _as_asked(self, fixes: Sequence[FixContext]) -> list[str]:
        """As `tune` asked for them."""
        texts = {id(context): text for text, context in self._contexts.items()}
        return [texts[id(one)] for one in fixes]

    def _next(self, step: int) -> int:
        now, why = monotonic_ns(), AutoStop.DONE
        self._until_ns = self._until_ns or now + int(self._options.seconds * 1e9)
        while self._candidates:
            left_s = (self._until_ns - now) / 1e9
            if left_s <= 0:
                why = AutoStop.OUT_OF_TIME
                break
            candidate = self._candidates.popleft()
            if self._excluded(candidate) or any(one in self._kept for one in candidate):
                continue
            for context in candidate:
                context.tell()
            self._begin(candidate, self._blocks(), None, min(left_s, self._options.each_s))
            return step + 1
        self._end(why)
        return NEVER

    def _gives_up(self, contest: Contest) -> bool:
        return contest.late or super()._gives_up(contest)

    def _end(self, why: AutoStop, detail: str | None = None) -> None:
        if not self._over:
            super()._end(why, detail)
        self._core.last_step = self._core.steps
