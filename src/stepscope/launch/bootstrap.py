"""What runs in the child before the program, and what `stepscope.apply` runs in it: the probe and
the fixes wait for torch."""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.record.fix import FixOutcome


def start_probe(options: str) -> None:
    """Called once, before the program's first line. Never raises."""
    from stepscope.probe.boot import boot

    boot(options, _prepare, _pass_on)


def _pass_on(environ: Mapping[str, str], options: str) -> dict[str, str]:
    from stepscope.launch.program import hooked_environment

    return hooked_environment(environ, options)


def _prepare(observer: Any) -> None:
    options = observer.core.options
    if options.fixes:
        from stepscope.fixes.apply import apply_fixes

        apply_fixes(options.fixes, observer.seams)
    if options.auto is not None:
        from stepscope.fixes.auto import AutoFixes

        AutoFixes(observer, options.auto).install()
    if options.contests is not None:
        from stepscope.fixes.in_place import TuneContests

        TuneContests(observer, options.contests).install()
    if options.check_fixes:
        check_fixes(observer)


def check_fixes(observer: Any) -> None:
    """Have fixes asked whether they would apply, each time the configuration is read. They are
    imported the first time."""

    @cache
    def checks() -> Any:
        from stepscope.fixes.apply import FixChecks

        return FixChecks(observer)

    observer.core.on_config.append(lambda: checks().check())


class AppliedFixes:
    """The fixes applied in this process, and what each did so far; printed, a line for each."""

    def __init__(self) -> None:
        self._contexts: Mapping[str, Any] | None = None

    @property
    def outcomes(self) -> "tuple[FixOutcome, ...]":
        """One per fix; none before torch is imported."""
        return tuple(context.outcome for context in (self._contexts or {}).values())

    def __repr__(self) -> str:
        from stepscope.record.fix_words import reason_words, sentence

        if self._contexts is None:
            return "<fixes, waiting for torch>"
        told = ((one, [*map(sentence, one.applied)] or reason_words(one)) for one in self.outcomes)
        return "\n".join(f"{one.name}: {one.state}: {'; '.join(words)}" for one, words in told)

    def install(self, asked: Sequence[str], at: tuple[str, int], torch_there: bool) -> None:
        """Install fixes now that torch is there."""
        from stepscope.fixes.apply import CalledAt, apply_here

        self._contexts = apply_here(asked, CalledAt(*at), torch_there)


def apply_in_process(asked: Sequence[str], at: tuple[str, int]) -> AppliedFixes:
    """Apply fixes in this process, once torch is there; `at`: the program's line that asks. Raises
    UsageError."""
    from stepscope.fixes.registry import fix_variables, parse_fixes
    from stepscope.probe.patches import import_watch

    variables = fix_variables(parse_fixes(asked))
    applied, torch_there = AppliedFixes(), "torch" in sys.modules
    if not torch_there:
        os.environ |= variables
    import_watch().when_imported("torch", lambda _: applied.install(asked, at, torch_there))
    return applied
