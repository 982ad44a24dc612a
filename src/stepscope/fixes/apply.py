"""Fixes in the program's process: installed once torch is there, asked when it fails, and asked of
what it trains with whether they would apply."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any
from weakref import ref

from stepscope.fixes.base import Fix, FixContext, LiveLoader, LiveModel, LiveProgram
from stepscope.fixes.inspect import devices
from stepscope.fixes.inspect.user_code import raise_location
from stepscope.fixes.registry import all_fixes, parse_fixes
from stepscope.probe.observer import Observer
from stepscope.probe.points.root_model import inside_wrapper
from stepscope.probe.points.seams import Seams
from stepscope.probe.unseen import unseen_by_program
from stepscope.record.facts import FixCheck, FixChecksFact, SiteKind
from stepscope.record.fix import INSTALL_FAILED, NO_CUDA, NotApplied
from stepscope.record.fix_words import sentence
from stepscope.record.kinds import HostWait


def apply_fixes(asked: Iterable[str], seams: Seams) -> None:
    """Install every fix. One that fails reports it, and the program runs without it."""
    placed: list[tuple[Fix, FixContext]] = []
    for fix, value in parse_fixes(asked):
        context = FixContext(fix, seams)
        seams.core.facts.write("fix", name=fix.name, state="asked", value=value, text=fix.missing)
        try:
            if fix.needs == "cuda" and not devices.cuda_here():
                context.not_applied(NotApplied(NO_CUDA))
                continue
            fix.install(value, context)
        except Exception as problem:
            context.not_applied(NotApplied(INSTALL_FAILED, error=repr(problem)))
            continue
        placed.append((fix, context))

    def hook(call: Any, kind: Any, error: BaseException, trace: TracebackType | None) -> None:
        """End the program with one line if a fix caused its exception."""
        where, line = raise_location(trace)
        for fix, context in placed:
            try:
                record = fix.explain(error, line)
            except Exception:
                record = None
            if record is not None:
                record = record if record.place else replace(record, place=where)
                context.not_applied(record)
                print(f"stepscope: {fix.name}: {sentence(record)}", file=sys.stderr)
                return
        call(kind, error, trace)

    seams.around(sys, "excepthook", hook)


def check_fixes(live: LiveProgram, fixes: Iterable[Fix]) -> list[FixCheck]:
    """What fixes say of a program. One that fails to tell is left out."""
    found = []
    for fix in fixes:
        try:
            said = _no_device(fix) or fix.check(live)
        except Exception:
            continue
        check = FixCheck(name=fix.name)
        if said is not None:
            check.refused, check.text = said.to_json(), sentence(said)
        found.append(check)
    return found


def _no_device(fix: Fix) -> NotApplied | None:
    """As `apply_fixes` asks first."""
    return NotApplied(NO_CUDA) if fix.needs == "cuda" and not devices.cuda_here() else None


class FixChecks:
    """Asks fixes of what the program trains with, and writes what they say. Once something is gone
    that was there at the last asking the program takes itself down: then the answers stand."""

    def __init__(self, observer: Observer) -> None:
        self._core = observer.core
        self._config = observer.config
        self._seen: list[ref[Any]] = []
        self._written: list[FixCheck] = []

    def check(self) -> None:
        """Ask all, unless what was there is gone."""
        if any(one() is None for one in self._seen):
            return
        with unseen_by_program():
            checks = check_fixes(self._live_program(), all_fixes(quiet=True))
        if checks != self._written:
            self._written = checks
            self._core.facts.write(FixChecksFact(checks=checks))

    def _live_program(self) -> LiveProgram:
        core, config, feeding = self._core, self._config, self._core.feeding
        loader = feeding.loader() if feeding is not None else None
        scaler = core.scaler() if core.scaler is not None else None
        models = [LiveModel(inside_wrapper(one), inputs) for one, inputs in config.called]
        optimizers = config.optimizers
        known = [*(one.module for one in models), *optimizers, loader]
        self._seen = [ref(one) for one in known if one is not None]
        fed = loader is not None and feeding is not None  # asked so, since loaders have a length
        return LiveProgram(
            models=tuple(models),
            loader=LiveLoader(loader, feeding.largest_bytes) if fed and feeding else None,
            optimizers=tuple(optimizers),
            autocast=config.autocast is not None,
            scaler=scaler is not None and bool(scaler.is_enabled()),
            items=core.sites.lines(SiteKind.SYNC, HostWait.ITEM),
            environment_changed=tuple(core.environment_changed),
        )
