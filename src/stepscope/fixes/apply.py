"""Fixes in the program's process: installed once torch is there, asked when it fails, and asked of
what it trains with whether they would apply."""

import atexit
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from multiprocessing import parent_process
from types import TracebackType
from typing import Any, NamedTuple
from weakref import ref

from torch.optim import optimizer as optimizer_hooks

from stepscope.fixes.base import Fix, FixContext, LiveLoader, LiveModel, LiveProgram
from stepscope.fixes.inspect import devices
from stepscope.fixes.inspect.user_code import raise_location
from stepscope.fixes.registry import all_fixes, exclude_each_other, parse_fixes
from stepscope.probe import observer as observers
from stepscope.probe.boot import watch_forks
from stepscope.probe.core import Core
from stepscope.probe.observer import Observer
from stepscope.probe.patches import Patches, import_watch
from stepscope.probe.points import compiler, root_model
from stepscope.probe.points.root_model import inside_wrapper, patch_root_models
from stepscope.probe.points.seams import FixHost, Seams
from stepscope.probe.program_state import ConfigReader
from stepscope.probe.step_rule import NEVER
from stepscope.probe.unseen import unseen_by_program
from stepscope.record.facts import FixCheck, FixChecksFact, SiteKind
from stepscope.record.fix import (
    INSTALL_FAILED,
    NO_CUDA,
    NOTHING_FOUND,
    FixState,
    NotApplied,
    Reason,
)
from stepscope.record.fix_words import sentence
from stepscope.record.kinds import HostWait

EXCLUDED = Reason("excluded", "cannot be combined with {code}, which is applied already")
OTHER_VALUE = Reason("other_value", "applied already, as {value}")
TORCH_THERE = Reason(
    "torch_there", "it sets environment variables: apply it before torch is imported"
)


def apply_fixes(
    asked: Iterable[str], seams: Seams, refused: Mapping[str, NotApplied] | None = None
) -> bool:
    """Install every fix; whether any was. One that fails reports it, and the program runs without
    it. `refused`: why some are not even tried, by name."""
    placed: list[FixContext] = []
    for fix, value in parse_fixes(asked):
        context = seams.core.placed[fix.name] = FixContext(fix, seams, value)
        context.tell()
        if install_fix(context, (refused or {}).get(fix.name)):
            placed.append(context)
    if placed:
        explain_failures(placed, seams)
    return bool(placed)


def install_fix(context: FixContext, refused: NotApplied | None = None) -> bool:
    """Install a fix; whether that went well. `refused`: why it is not even tried."""
    try:
        reason = refused or _no_device(context.fix)
        if reason is None:
            context.fix.install(context.value, context)
            return True
        context.not_applied(reason)
    except Exception as problem:
        context.not_applied(NotApplied(INSTALL_FAILED, error=repr(problem)))
    return False


def explain_failures(placed: Iterable[FixContext], seams: Seams) -> None:
    """Have the program end with one line if a fix that is on caused its exception."""

    def hook(call: Any, kind: Any, error: BaseException, trace: TracebackType | None) -> None:
        where, line = raise_location(trace)
        for context in placed:
            try:
                record = context.fix.explain(error, line) if context.on else None
            except Exception:
                record = None
            if record is not None:
                record = record if record.place else replace(record, place=where)
                context.not_applied(record)
                print(f"stepscope: {context.fix.name}: {sentence(record)}", file=sys.stderr)
                if seams.core.log is None:  # nobody asked for the program to be run with it
                    break
                return
        call(kind, error, trace)

    seams.around(sys, "excepthook", hook)


class CalledAt(NamedTuple):
    """The program's line that applies fixes."""

    file: str
    line: int


class _Unobserved(FixHost):
    """This process with fixes, and nothing that observes it. Refusals become warnings, one for each
    fix, at the line that applies it."""

    def __init__(self, called: CalledAt) -> None:
        super().__init__()
        self.compiles = True  # nothing tells whether it does
        self.pid = os.getpid()
        self._called = called
        self._patches, self._root_patches = Patches(), Patches()
        self.seams = Seams(self, self._patches)
        self._warned: set[str] = set()
        self._due = 0
        self._trains = self._watching = False

    def install(self, asked: list[str], refused: dict[str, NotApplied]) -> None:
        """Have these fixes act, and what it takes for them to find models."""
        if not apply_fixes(asked, self.seams, refused):
            return
        if not self._watching:
            self._watching = True
            optimizer_hooks.register_optimizer_step_post_hook(self._stepped)
            watch_forks(self._forked)
            atexit.register(self._end)
        if self.fixing and self.roots is None:
            root_model.compiler_in_use()
            patch_root_models(self, self._root_patches)
            self.seams.optimizer_made(lambda *_: self.roots.search())
            watch = import_watch()
            watch.when_imported("torch._dynamo.eval_frame", compiler.skip_our_code)
            names = "torch._dynamo.variables.nn_module"
            watch.when_imported(names, root_model.show_dynamo_the_original)

    def report(self, fix: str, **said: Any) -> None:
        if said["state"] == FixState.NOT_APPLICABLE:
            self._warn(fix, said["text"])

    def _warn(self, fix: str, text: str) -> None:
        """Once for a fix, and not again in processes that the program starts."""
        if fix not in self._warned and parent_process() is None:
            self._warned.add(fix)
            warnings.warn_explicit(f"stepscope: {fix}: {text}", UserWarning, *self._called)

    def wake(self) -> None:
        self._due = 0

    def called_elsewhere(self) -> None:
        """Calls are the steps of a program that does not train."""
        if not self._trains:
            self._step_ended()

    def _stepped(self, *_: Any) -> None:
        if not root_model.compiling():
            self._trains = True
            self._step_ended()

    def _step_ended(self) -> None:
        self.steps += 1
        if self.steps >= self._due:
            self._due = min((callback(self.steps) for callback in self.on_step), default=NEVER)

    def _forked(self) -> None:
        self.inert, self.fixing = True, False
        if self.roots is not None:
            self.roots.searching = False
            self.roots.unwatch()

    def _end(self) -> None:
        """The program is over: fixes that watched something tell what they saw last."""
        for callback in () if self.inert else self.on_end:
            try:
                callback()
            except Exception:
                continue
        for name, context in self.placed.items():
            if self.steps and not self.inert and context.outcome.reason == NOTHING_FOUND:
                self._warn(name, sentence(context.outcome.not_applied[0]))
        self._root_patches.restore()
        self._patches.restore()


_here: _Unobserved | None = None  # of this process


def apply_here(asked: Iterable[str], called: CalledAt, torch_there: bool) -> dict[str, FixContext]:
    """Install fixes while the program runs, once each: where it is observed as `run --fix` would,
    unobserved otherwise. The contexts of all that are installed by now. `torch_there`: whether
    torch was imported before they were asked for."""
    global _here
    observer = observers.current
    if observer is None and (_here is None or _here.pid != os.getpid()):
        _here = _Unobserved(called)
    apart = _here.placed if _here is not None and _here.pid == os.getpid() else {}
    placed: dict[str, FixContext] = apart | (observer.core.placed if observer else {})
    new, refused = [], {}
    for fix, value in parse_fixes(asked):
        known = placed.get(fix.name)
        if known is not None:
            if known.value != value:
                known.not_applied(NotApplied(OTHER_VALUE, value=known.value))
            continue
        new.append(fix.name if value is None else f"{fix.name}={value}")
        other = next((one for one in placed if exclude_each_other(one, fix.name)), None)
        variables = fix.environment(value).items()
        if other is not None:
            refused[fix.name] = NotApplied(EXCLUDED, code=other)
        elif torch_there and not variables <= os.environ.items():
            refused[fix.name] = NotApplied(TORCH_THERE)
    if observer is not None and new:
        core = observer.core
        core.fixes += new
        core.fixing = True  # from now on every step is clocked
        if core.clocks is not None:
            core.clocks.occasion()
        apply_fixes(new, observer.seams, refused)
        return placed | core.placed
    if new and _here is not None:
        _here.fixes += new
        _here.install(new, refused)
    return placed | (_here.placed if _here is not None else {})


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
        live = live_program(self._core, self._config)
        known = [*(one.module for one in live.models), *live.optimizers]
        loader = None if live.loader is None else live.loader.loader
        self._seen = [ref(one) for one in (*known, loader) if one is not None]
        with unseen_by_program():
            checks = check_fixes(live, all_fixes(quiet=True))
        if checks != self._written:
            self._written = checks
            self._core.facts.write(FixChecksFact(checks=checks))


def live_program(core: Core, config: ConfigReader) -> LiveProgram:
    """What a program trains with, as far as that was seen."""
    feeding = core.feeding
    loader = feeding.loader() if feeding is not None else None
    scaler = core.scaler() if core.scaler is not None else None
    called = [(inside_wrapper(one), inputs) for one, inputs in config.called]
    once = {id(one): LiveModel(one, inputs) for one, inputs in reversed(called)}
    fed = loader is not None and feeding is not None  # asked so, since loaders have a length
    return LiveProgram(
        models=tuple(reversed(once.values())),
        loader=LiveLoader(loader, feeding.largest_bytes) if fed and feeding else None,
        optimizers=tuple(config.optimizers),
        autocast=config.autocast is not None,
        scaler=scaler is not None and bool(scaler.is_enabled()),
        items=core.sites.lines(SiteKind.SYNC, HostWait.ITEM),
        environment_changed=tuple(core.environment_changed),
    )
