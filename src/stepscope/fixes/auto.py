"""`run --auto`: fixes are tried in the running program, one contest after the other, and what gains
stays on.

Any doubt switches everything off, and the program goes on as written: a fix that fails, a loss that
is no longer finite, a program that compiles, captures graphs or runs on several ranks.
"""

import sys
from collections.abc import Sequence
from math import ceil, prod
from typing import Any, Final

from stepscope.fixes.apply import check_fixes, explain_failures, install_fix
from stepscope.fixes.base import Fix, FixContext
from stepscope.fixes.in_place import IN_ORDER, KINDS, Candidate, InPlace
from stepscope.fixes.inspect.models import StateSnapshot
from stepscope.fixes.lazy import torch
from stepscope.fixes.registry import all_fixes, exclude_each_other, parse_fixes
from stepscope.probe.observer import Observer
from stepscope.probe.step_rule import NEVER
from stepscope.record.errors import UsageError
from stepscope.record.facts import AutoStop, ContestFact
from stepscope.record.fix import Switch
from stepscope.record.probe_options import AutoOptions
from stepscope.stats.paired import Blocks

_LOSS: Final = 0.05
"""Of the steps with a candidate that is slower: what they take longer, by experience."""
_OF_THE_REST: Final = 4
"""A contest takes at most one part in so many of the steps that are left, or twice what a clear one
needs. Nearly all of that is training that goes on all the same."""
_LONGEST_S: Final = 30.0
"""It takes no longer either, or no longer than twice what a clear one needs."""


class AutoFixes(InPlace):
    """Tries all fixes that can be switched between steps."""

    def __init__(self, observer: Observer, options: AutoOptions) -> None:
        super().__init__(observer, options.allow)
        self._options = options
        self._start: Candidate = ()
        self._called: set[tuple[int, bool, bool, bool]] = set()
        """Models, and in which mode, called in this contest, with the candidate or without."""
        self._why_none = AutoStop.NOTHING_TO_TRY

    def install(self) -> None:
        """Put in place, switched off, what may be tried. Before the program's first line."""
        self._core.around_root.insert(0, self._root_called)
        super().install()

    def _install_candidates(self) -> None:
        seams = self._observer.seams
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

    def _may_try(self, fix: Fix) -> bool:
        """Whether it is for speed, of an allowed kind, and can be switched here."""
        asked = {name.partition("=")[0] for name in self._core.fixes}
        return (
            fix.switch is Switch.AT_STEP
            and KINDS.index(fix.kind) <= self._least_exact
            and not (fix.saves_memory or fix.only_if_found or fix.requires)
            and fix.name not in asked
            and not any(exclude_each_other(fix.name, other) for other in asked)
        )

    def _started_with(self, asked: Sequence[str]) -> Candidate:
        """What an earlier run kept; empty if one of them cannot be had as it was."""
        try:
            known = [(self._contexts.get(fix.name), value) for fix, value in parse_fixes(asked)]
        except UsageError:  # of another version
            return ()
        found = tuple(one for one, value in known if one is not None and one.value == value)
        return found if len(found) == len(known) else ()

    def _warmed_up(self) -> None:
        """What may gain is known by now, too."""
        super()._warmed_up()
        if not self._candidates:
            self._find_candidates()

    def _find_candidates(self) -> None:
        """What nothing speaks against, exact ones first, then by what they usually gain."""
        fixes = [context.fix for context in self._contexts.values()]
        answers = check_fixes(self._live(), fixes)
        lost = self._start if len(self._start) == 1 else ()
        found = [self._contexts[one.name] for one in answers if one.refused is None]
        found = [one for one in found if one not in lost]
        found.sort(key=lambda one: (KINDS.index(one.fix.kind), -one.fix.prior_gain))
        self._candidates.extend((one,) for one in found)

    def _next(self, step: int) -> int:
        """Begin the next contest that the rest of the run can pay back; end where there is none."""
        blocks = self._blocks()
        while self._candidates:
            candidate = self._candidates[0]
            short = self._steps_needed(candidate, blocks) - self._steps_left(step)
            if short > 0 and self._core.options.steps is None:
                return step + max(short, blocks.steps)  # how long it goes on shows as it does
            self._candidates.popleft()
            if short > 0:
                self._why_none = AutoStop.TOO_SHORT
            elif not self._excluded(candidate):
                self._called.clear()
                clear_s = blocks.least * self._step_ms / 1e3
                most = max(self._steps_left(step) // _OF_THE_REST, 2 * blocks.least)
                self._begin(candidate, blocks, most, max(_LONGEST_S, 2 * clear_s))
                return step + 1
        self._end(AutoStop.DONE if self._contest_ns else self._why_none)
        return NEVER

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

    def _tried(self, candidate: Candidate, fact: ContestFact | None) -> None:
        if fact is not None and fact.kept:
            times = f"{fact.before_ms:.3g} → {fact.after_ms:.3g} ms per step"
            self._say(f"{', '.join(fact.candidate)} on: {times}")
        elif candidate is self._start:
            self._find_candidates()

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
        super()._end(why, detail)
        if why not in IN_ORDER:
            self._say(f"--auto ended, all fixes off: {why.words}")
        if not self._kept and self._root_called in self._core.around_root:
            self._core.around_root.remove(self._root_called)

    def _say(self, text: str) -> None:
        if not self._options.quiet:
            print(f"stepscope: {text}", file=sys.stderr, flush=True)
