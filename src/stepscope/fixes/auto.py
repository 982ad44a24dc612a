"""`run --auto`: fixes are tried in the running program, one contest after the other, and what gains
stays on.

Any doubt switches everything off, and the program goes on as written: a fix that fails, a loss that
is no longer finite, a program that compiles, captures graphs or runs on several ranks.
"""

import sys
from collections import deque
from collections.abc import Sequence
from math import ceil, prod
from random import Random
from time import monotonic_ns
from typing import Any, Final

from stepscope.fixes.apply import check_fixes, explain_failures, install_fix, live_program
from stepscope.fixes.base import Fix, FixContext, LiveProgram
from stepscope.fixes.contest import Blocks, Clock, Contest, ContestResult, HostClock, StreamClock
from stepscope.fixes.inspect.models import StateSnapshot
from stepscope.fixes.lazy import torch
from stepscope.fixes.registry import all_fixes, exclude_each_other, parse_fixes
from stepscope.probe.observer import Observer
from stepscope.probe.step_rule import NEVER
from stepscope.record.errors import UsageError
from stepscope.record.facts import AutoFact, AutoStop, ContestFact
from stepscope.record.fix import INSTALL_FAILED, FixKind, FixState, NotApplied, Switch
from stepscope.record.probe_options import AutoOptions

_FIRST_STEPS: Final = 24
"""Nothing is tried in these: a program warms up."""
_TIMED_STEPS = 8  # the last of them show how long a step takes
_LOSS = 0.05  # of the steps with a candidate that is slower: what they take longer, by experience
_OF_THE_REST = 4
"""A contest takes at most one part in so many of the steps that are left, or twice what a clear one
needs. Nearly all of that is training that goes on all the same."""
_WATCHED_EVERY = 16  # steps, once all is decided: what is kept may still turn out to be in doubt
_SEED = 25
_KINDS = [*FixKind]  # the most exact first


class AutoFixes:
    """Tries fixes between steps and keeps what gains."""

    def __init__(self, observer: Observer, options: AutoOptions) -> None:
        self._observer = observer
        self._core = observer.core
        self._options = options
        self._least_exact = _KINDS.index(options.allow)
        self._draw = Random(_SEED)  # never the program's
        self._contexts: dict[str, FixContext] = {}
        self._candidates: deque[tuple[FixContext, ...]] = deque()
        self._start: tuple[FixContext, ...] = ()
        self._kept: list[FixContext] = []
        self._trying: tuple[FixContext, ...] = ()
        self._replaced: tuple[FixContext, ...] = ()
        """What is kept and does not go with that: off while it is on."""
        self._contest: Contest | None = None
        self._clock: Clock = HostClock()
        self._contest_ns = self._timed_ns = 0  # when they began
        self._step_ms = 0.0
        self._acting = self._candidate_on = False  # whether any fix is on; what is tried just now
        self._called: set[tuple[int, bool, bool, bool]] = set()
        """Models, and in which mode, called in this contest, with the candidate or without."""
        self._effective = False  # whether the candidate was seen to change anything
        self._was_finite: bool | None = None
        """Whether all losses were before any fix was on; None: none has been."""
        self._why_none = AutoStop.NOTHING_TO_TRY
        self._over = False

    def install(self) -> None:
        """Put in place, switched off, what may be tried. Before the program's first line."""
        core, seams = self._core, self._observer.seams
        core.around_root.insert(0, self._root_called)
        core.on_step.append(self._step_ended)
        core.on_end.append(self._tell)
        core.fixing = True  # every step is clocked alike until all is decided
        core.facts.write(self._fact(None))
        try:
            for fix in filter(self._may_try, all_fixes(quiet=True)):
                value = fix.parse(fix.suggested[0] if fix.suggested else None)
                context = FixContext(fix, seams, value, on=False)
                if install_fix(context):
                    self._contexts[fix.name] = context
            explain_failures(self._contexts.values(), seams)
            self._start = self._started_with(self._options.start)
            if self._start:
                self._candidates.append(self._start)
                self._trying = self._start
                self._switch(True)
        except Exception as problem:
            self._end(AutoStop.FIX_FAILED, repr(problem))

    def _may_try(self, fix: Fix) -> bool:
        """Whether it is for speed, of an allowed kind, and can be switched here."""
        asked = {name.partition("=")[0] for name in self._core.fixes}
        return (
            fix.switch is Switch.AT_STEP
            and _KINDS.index(fix.kind) <= self._least_exact
            and not (fix.saves_memory or fix.only_if_found or fix.requires)
            and fix.name not in asked
            and not any(exclude_each_other(fix.name, other) for other in asked)
        )

    def _started_with(self, asked: Sequence[str]) -> tuple[FixContext, ...]:
        """What an earlier run kept; empty if one of them cannot be had as it was."""
        try:
            known = [(self._contexts.get(fix.name), value) for fix, value in parse_fixes(asked)]
        except UsageError:  # of another version
            return ()
        found = tuple(one for one, value in known if one is not None and one.value == value)
        return found if len(found) == len(known) else ()

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
        if step < _FIRST_STEPS:
            return self._warm_up(step)
        if self._contest is not None:
            result = self._contest.step_ended()
            if result is not None:
                self._decided(result)
            elif self._contest.blocks_tried and not self._took_effect():
                self._drop()
            else:
                return step + 1
        elif not self._step_ms:
            self._warmed_up()
        return self._next(step)

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
        begin = _FIRST_STEPS - _TIMED_STEPS
        if step <= begin:
            self._timed_ns = monotonic_ns()
        return begin if step < begin else _FIRST_STEPS

    def _warmed_up(self) -> None:
        """What may gain is known by now, and how long a step takes."""
        self._step_ms = max(1e-3, (monotonic_ns() - self._timed_ns) / 1e6 / _TIMED_STEPS)
        if self._core.device.active:
            self._clock = StreamClock()
        if not self._candidates:
            self._find_candidates()

    def _live(self) -> LiveProgram:
        return live_program(self._core, self._observer.config)

    def _find_candidates(self) -> None:
        """What nothing speaks against, exact ones first, then by what they usually gain."""
        fixes = [context.fix for context in self._contexts.values()]
        answers = check_fixes(self._live(), fixes)
        lost = self._start if len(self._start) == 1 else ()
        found = [self._contexts[one.name] for one in answers if one.refused is None]
        found = [one for one in found if one not in lost]
        found.sort(key=lambda one: (_KINDS.index(one.fix.kind), -one.fix.prior_gain))
        self._candidates.extend((one,) for one in found)

    def _next(self, step: int) -> int:
        """Begin the next contest that the rest of the run can pay back; end where there is none."""
        loader = self._live().loader
        blocks = Blocks.of(self._step_ms, 0 if loader is None else loader.loader.num_workers)
        while self._candidates:
            candidate = self._candidates[0]
            short = self._steps_needed(candidate, blocks) - self._steps_left(step)
            if short > 0 and self._core.options.steps is None:
                return step + max(short, blocks.steps)  # how long it goes on shows as it does
            self._candidates.popleft()
            if short > 0:
                self._why_none = AutoStop.TOO_SHORT
            elif not self._excluded(candidate):
                self._begin(candidate, blocks, self._steps_left(step) // _OF_THE_REST)
                return step + 1
        self._end(AutoStop.DONE if self._contest_ns else self._why_none)
        return NEVER

    def _excluded(self, candidate: Sequence[FixContext]) -> bool:
        """Whether the program has applied it meanwhile, or what does not go with it."""
        applied = self._core.placed
        names = [one.fix.name for one in candidate]
        return any(
            name in applied or any(exclude_each_other(name, other) for other in applied)
            for name in names
        )

    def _steps_needed(self, candidate: Sequence[FixContext], blocks: Blocks) -> int:
        """After how many more steps a usual gain has paid for a usual contest, and for what it
        takes to set the candidate up."""
        device = "cuda" if self._core.device.active else "cpu"
        values = ((one.fix, "" if one.value is None else str(one.value)) for one in candidate)
        setup_ms = sum(fix.setup_seconds(value, device) for fix, value in values) * 1e3
        cost = _LOSS * blocks.least / 2 + setup_ms / self._step_ms
        gain = max(1e-3, prod(one.fix.prior_gain for one in candidate) - 1)
        return max(blocks.least, ceil(cost / gain))

    def _steps_left(self, step: int) -> int:
        """As asked for; else what is left of the loader's first epoch, and at least as many as
        there were so far."""
        if self._core.options.steps is not None:
            return self._core.options.steps - step
        loader = self._live().loader
        try:
            epoch = 0 if loader is None else len(loader.loader)
        except Exception:  # an iterable dataset has none, and a sampler may have its own idea
            epoch = 0
        return max(step, epoch - step)

    def _begin(self, candidate: tuple[FixContext, ...], blocks: Blocks, most_steps: int) -> None:
        self._trying = candidate
        self._replaced = tuple(
            kept
            for kept in self._kept
            if any(exclude_each_other(kept.fix.name, one.fix.name) for one in candidate)
        )
        self._called.clear()
        self._effective = False
        self._contest_ns = monotonic_ns()
        most_steps = max(most_steps, 2 * blocks.least)
        self._contest = Contest(self._switch, self._clock, blocks, self._draw, most_steps)
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
        else:
            self._switch(False)
        fact = ContestFact(
            candidate=[_as_asked(one) for one in tried],
            kept=kept,
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
        if kept:
            self._step_ms = result.after_ms
            times = f"{result.before_ms:.3g} → {result.after_ms:.3g} ms per step"
            self._say(f"{', '.join(fact.candidate)} on: {times}")
        elif tried is self._start:
            self._find_candidates()

    def _took_effect(self) -> bool:
        """Whether what was on in a block has changed anything."""
        self._effective = self._effective or any(one.outcome.applied for one in self._trying)
        return self._effective

    def _drop(self) -> None:
        """What changes nothing here needs no contest."""
        tried = self._trying
        self._switch(False)
        self._contest, self._trying = None, ()
        if tried is self._start:
            self._find_candidates()

    def _did_as_allowed(self, tried: FixContext) -> bool:
        """Whether it took effect, and changed no more than it may."""
        outcome = tried.outcome
        exact = outcome.kind is not None and _KINDS.index(outcome.kind) <= self._least_exact
        return outcome.state is FixState.APPLIED and exact

    def _root_called(self, call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        """The first call of a model with other fixes on: where it fails, it is made again without
        any, as the program was written."""
        mode = id(module), module.training, torch.is_grad_enabled(), self._candidate_on
        if not self._acting or mode in self._called or self._core.device.capturing:
            return call(module, *args, **kwargs)
        before = StateSnapshot(module)
        try:
            result = call(module, *args, **kwargs)
        except Exception as problem:
            self._all_off()
            self._core.facts.write(self._fact(None))
            before.restore()
            result = call(module, *args, **kwargs)  # which raises what the program itself does
            self._end(AutoStop.FIX_FAILED, repr(problem))
            return result
        self._called.add(mode)
        return result

    def _end(self, why: AutoStop, detail: str | None = None) -> None:
        """Try nothing any more. Unless all is decided, switch everything off."""
        self._over = True
        if why not in (AutoStop.DONE, AutoStop.NOTHING_TO_TRY, AutoStop.TOO_SHORT):
            self._all_off()
            self._say(f"--auto ended, all fixes off: {why.words}")
        if not self._kept:
            if self._root_called in self._core.around_root:
                self._core.around_root.remove(self._root_called)
            self._core.fixing = bool(self._core.fixes)
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
        kept = [_as_asked(one) for one in self._kept]
        allow = self._options.allow.value
        return AutoFact(allow=allow, kept=kept, stopped=stopped, detail=detail)

    def _say(self, text: str) -> None:
        if not self._options.quiet:
            print(f"stepscope: {text}", file=sys.stderr, flush=True)


def _as_asked(context: FixContext) -> str:
    """As `--fix` takes it."""
    return context.fix.name if context.value is None else f"{context.fix.name}={context.value}"
