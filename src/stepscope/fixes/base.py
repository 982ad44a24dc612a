"""The definition of a fix, and its context inside the program."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import ref

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import PRIOR_GAINS, ObservedProgram, ProgramPart
from stepscope.fixes.edit.calls import with_argument
from stepscope.fixes.edit.source import Change, Source
from stepscope.fixes.edit.statements import apply_call
from stepscope.record.errors import UsageError
from stepscope.record.fix import (
    INSTALL_FAILED,
    LOADER,
    Applied,
    Broke,
    FixKind,
    FixOutcome,
    NotApplied,
    Reason,
    SourceEdit,
    SourceLine,
    Switch,
    TrainingChange,
    fact_state,
    outcome_of,
)
from stepscope.record.fix_words import sentence
from stepscope.record.trial import Rejection

if TYPE_CHECKING:
    from stepscope.fixes.edit.locate import FoundEdits, SourceFiles
    from stepscope.probe.points.seams import Seams
    from stepscope.probe.program_state import InputKind

__all__ = ["Fix", "FixContext", "FixKind", "LiveProgram", "SourceEdit"]


@dataclass(frozen=True, slots=True)
class LiveModel:
    """A root model, seen through wrappers."""

    module: Any
    inputs: "frozenset[InputKind]" = frozenset()
    """What its first call was given."""

    @property
    def name(self) -> str:
        """Its class."""
        return type(self.module).__qualname__


@dataclass(frozen=True, slots=True)
class LiveLoader:
    """A DataLoader in use."""

    loader: Any
    largest_bytes: int = 0
    """Of the tensors in a batch; 0: not known."""

    @property
    def arguments(self) -> dict[str, Any]:
        """What it was made with, as far as fixes ask."""
        loader, same = self.loader, ("dataset", "collate_fn", "num_workers", "worker_init_fn")
        own = loader.batch_sampler if loader.batch_size is None else None
        more = ("batch_size", "sampler", "drop_last", "pin_memory", "persistent_workers")
        found = {name: getattr(loader, name) for name in (*same, *more)}
        return found if own is None else found | {"batch_sampler": own}


@dataclass(frozen=True, slots=True)
class LiveProgram:
    """What the probe has seen so far; a fix changes none of it."""

    models: tuple[LiveModel, ...] = ()
    loader: LiveLoader | None = None
    """The one that steps get their batches from."""
    optimizers: tuple[Any, ...] = ()
    """Those that have stepped."""
    autocast: bool = False
    """Whether the program uses it."""
    scaler: bool = False
    """Whether it scales losses."""
    items: tuple[tuple[str, int], ...] = ()
    """Lines of the loop that read a value off the device by `.item()` and the like."""
    environment_changed: tuple[str, ...] = ()
    """Variables the program had changed before it imported torch."""


def refused_by_all(answers: Iterable[NotApplied | None]) -> NotApplied | None:
    """The first refusal where nothing was accepted; None where there was nothing to ask of."""
    first = None
    for answer in answers:
        if answer is None:
            return None
        first = first or answer
    return first


class FixContext:
    """A fix's access to the program, and where it reports what it did."""

    def __init__(self, fix: "Fix", seams: "Seams", value: Any = None, on: bool = True) -> None:
        """`on`: whether the fix acts at once; see `switch`."""
        from stepscope.probe.points.seams import Gate

        self.value = value
        self.fix = fix
        self._gate = Gate(on)
        self.seams = seams.behind(self._gate)
        """Where it acts: while it is off, calls pass its handlers by."""
        self.watching = seams
        """Where it watches, on or off."""
        self._told = False
        self._reported: dict[Applied | NotApplied, None] = {}
        self._on_switch: list[Callable[[bool], None]] = []
        self._on_root: list[Callable[[Any], None]] = []
        self._roots: list[ref[Any]] = []

    @property
    def outcome(self) -> FixOutcome:
        """What it reported so far."""
        return outcome_of(self.fix.name, self.value, [*self._reported], self.fix.missing)

    def applied(self, record: Applied, kind: FixKind | None = None) -> None:
        """It took effect. `kind`: if not the fix's usual one."""
        self._report(replace(record, kind=kind or self.fix.kind))

    def not_applied(self, record: NotApplied) -> None:
        """It does not apply to something (or to anything) here; of a `Broke`: no longer."""
        self._report(record)

    def loader_not_applied(self, reason: Reason, value: int | None = None) -> None:
        """It does not apply to the DataLoader that the program is making."""
        self._report(NotApplied(reason, LOADER, place=self.place(), value=value))

    def root_found(self, handler: Callable[[Any], None]) -> None:
        """`handler(module)` once for every root model, before its first call with the fix on. Where
        it fails, the program runs without the fix."""

        def guarded(module: Any) -> None:
            try:
                handler(module)
            except Exception as problem:
                self.not_applied(NotApplied(INSTALL_FAILED, error=repr(problem)))

        if not self._on_root:
            self.watching.root_found(self._root_found)
        self._on_root.append(guarded)

    def _root_found(self, module: Any) -> None:
        self._roots.append(ref(module))
        for handler in self._on_root if self._gate.on else ():
            handler(module)

    def when_switched(self, handler: Callable[[bool], None]) -> None:
        """`handler(on)` whenever the fix goes on or off, which is on now if it is. Off, it puts
        back exactly what was there."""
        self._on_switch.append(handler)
        if self._gate.on:
            handler(True)

    @property
    def on(self) -> bool:
        """Whether the fix acts."""
        return self._gate.on

    def switch(self, on: bool) -> None:
        """Have the fix act from the next step on, or no longer. Between two steps, of a fix that
        can be switched there."""
        if on == self._gate.on:
            return
        self._gate.turn(on)
        for switched in self._on_switch:
            switched(on)
        for root in self._roots if on else ():
            module = root()
            for found in self._on_root if module is not None else ():
                found(module)

    def tell(self) -> None:
        """Write that it was asked for, and what it reports from now on and has reported so far.
        What is only tried is not told of."""
        if self._told:
            return
        self._told = True
        said = {"state": "asked", "value": self.value, "text": self.fix.missing}
        self.watching.core.report(self.fix.name, **said)
        for record in self._reported:
            self._write(record)

    def place(self) -> SourceLine | None:
        """The line of the user's code behind the current call."""
        from stepscope.fixes.inspect.user_code import user_location

        return user_location()

    def _report(self, record: Applied | NotApplied) -> None:
        if record in self._reported or self.watching.core.inert:
            return
        self._reported[record] = None
        if self._told:
            self._write(record)

    def _write(self, record: Applied | NotApplied) -> None:
        said = {"state": fact_state(record), "record": record.to_json(), "text": sentence(record)}
        self.watching.core.report(self.fix.name, **said)


class Fix:
    """One fix. torch may be imported in `install` and what it calls, nowhere else."""

    name: str
    group: str
    """data, waiting, arithmetic, launch, memory or batch."""
    title: str
    """What it does, in one line."""
    kind: FixKind
    effort: str
    """The size of its source edit, in a few words."""
    needs: str | None = None
    """The device it needs: "cuda", or None."""
    works_on: ProgramPart | None = None
    """The part of the program it needs; None: nothing in particular."""
    requires: str | None = None
    """The fix it needs, unless the program does that itself."""
    inside_of: str | None = None
    """For fixes of other packages: the fix it is installed just after. None: after all others."""
    switch: Switch = Switch.AT_START
    """When it can be switched on and off. AT_STEP: in `install` it acts through `context.seams`,
    watches through `context.watching`, and changes nothing outside handlers but in what it hands to
    `context.when_switched` and `context.root_found`."""
    acts_in_step: bool = True
    """Whether a window of steps can show what it gains."""
    only_if_found: bool = False
    """Tried for speed only if a finding or the user names it."""
    saves_memory: bool = False
    """It saves memory rather than time."""
    slow_start: bool = False
    """It compiles, captures or measures for minutes before the first steady step."""
    step_grows: bool = False
    """A step may grow as long as several."""
    fills_buffers: bool = False
    """Batches are ready before they are requested: only many steps show their pace."""
    training_change: TrainingChange | None = None
    """What a semantic fix changes."""
    values: Sequence[str] = ()
    """Values allowed after `=`, if any. `N` stands for a number."""
    default: str | None = None
    """The value of a fix given without one."""
    suggested: Sequence[str] = ()
    """Values worth trying, the best guess first."""
    bad_with: Sequence[str] = ()
    """Fixes it must not be combined with."""
    missing: str = "never reached"
    """Why it did nothing, if it reported nothing."""
    edited_by_call: bool = False
    """Its edit is a call of `stepscope.apply`: a few lines of source cannot express it."""
    edited_at_top: bool = False
    """Its edit is `SourceEdit.before`, inserted at the top of the program, before torch is imported
    if it sets the environment."""
    redraws_model: bool = False
    """It changes how the model makes its own random draws, as in dropout."""
    failures: Mapping[str, Reason] = {}
    """Patterns (name and text) of exceptions it causes, and what they mean."""
    rewrite: Callable[[Source, int], list[Change]] | None = None
    """Its edit: the rewritten statement on a line where it took effect."""
    after_model: str | None = None
    """Its edit: a statement after the model is made, `{0}` being the model's variable."""
    argument: str | None = None
    """The keyword argument of a loader or an optimizer that does the same."""
    argument_of: Sequence[str] = ("DataLoader",)
    """The classes that take it."""

    def parse(self, text: str | None) -> Any:
        """The value in `--fix name=text`, checked. Raises UsageError. None: none was given."""
        if text is not None and not self.values:
            raise UsageError(f"--fix {self.name} takes no value")
        text = self.default if text is None else text
        if text is None or (text in self.values and text != "N"):
            return text
        if "N" in self.values and re.fullmatch(r"[0-9]{1,6}", text) and int(text) > 0:
            return int(text)
        allowed = ", ".join("a number" if value == "N" else value for value in self.values)
        raise UsageError(f"--fix {self.name}={text}: use {allowed}")

    def environment(self, value: Any) -> dict[str, str]:
        """Environment variables the program must start with."""
        return {}

    @property
    def prior_gain(self) -> float:
        """The speedup to expect without a prediction."""
        return PRIOR_GAINS.get(self.group, 1.0)

    def applies(self, program: ObservedProgram) -> Rejection | None:
        """Why it cannot help a program that has what it needs; None if it may."""
        return None

    def in_use(self, program: ObservedProgram) -> bool:
        """Whether the program does it itself, which satisfies fixes that require it."""
        return False

    def needed_beside(self, program: ObservedProgram) -> bool:
        """Whether the fix it requires is likely to gain little without it."""
        return True

    def first_values(self, program: ObservedProgram, proposed: str | None) -> list[str | None]:
        """Values to try first, likeliest first; None: no value. Empty: nothing to try. `proposed`
        is a finding's value."""
        return [proposed or (self.suggested[0] if self.suggested else None)]

    def other_values(self, value: str, program: ObservedProgram) -> list[str]:
        """Values to try in place of one that helped, in order; numbers double or halve."""
        most = self.most(program)
        if most is None or not value.isdecimal():
            return []
        now = int(value)
        more, less = min(2 * now, most), now // 2
        return [str(one) for one in (more, less) if one >= 1 and (one >= 1.2 * now or one < now)]

    def most(self, program: ObservedProgram) -> int | None:
        """The largest number worth trying; None: try no other numbers."""
        return None

    def tried_with(self, found: frozenset[str], device: str) -> Sequence[tuple[str, ...]]:
        """Sets of fixes to try with it as one, since each may gain nothing alone. `found` are all
        candidates' names."""
        return ()

    def setup_seconds(self, value: str, device: str) -> float:
        """Extra seconds of a trial with it, by experience; later trials know better."""
        return 0.0

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """What it changes in a window of steps. Import numpy only in here."""
        return None

    def rounding(self, value: str) -> str | None:
        """The dtype it rounds to; None if no coarser than the program's."""
        return None

    def batches_per_update(self, value: str) -> int:
        """How many batches it combines into one update."""
        return 1

    def check(self, live: LiveProgram) -> NotApplied | None:
        """Why it would not apply to what the program trains with, as far as that shows without
        trying; None: nothing speaks against it. In the program's process, of its own objects, which
        stay as they are. What is told here and what `install` refuses by is the same code."""
        return None

    def install(self, value: Any, context: FixContext) -> None:
        """Subscribe to the seams. In the program's process, just after torch was imported, with a
        CUDA device where the fix needs one."""
        raise NotImplementedError

    def explain(self, error: BaseException, line: str) -> Broke | None:
        """Why the program cannot go on with this fix; None if the error is not its doing. `line` is
        the user's source line that raised. Asked when an exception ends the program."""
        text = f"{type(error).__name__}: {error}"
        found = (why for said, why in self.failures.items() if re.search(said, text, re.DOTALL))
        return next(map(Broke, found), None)

    def argument_value(self, value: Any) -> str:
        """The value of `argument`, as an expression."""
        return "True"

    def edit(self, value: Any, line: str) -> SourceEdit:
        """The source edit for the line it took effect on."""
        if self.argument is None:
            raise NotImplementedError
        text = self.argument_value(value)
        owner = "DataLoader" if self.works_on == ProgramPart.LOADER else "optimizer"
        changed = with_argument(line, self.argument_of, self.argument, text)
        return SourceEdit(f"pass {self.argument}={text} to the {owner}", changed)

    def edit_on(self, device: str, value: Any, line: str) -> SourceEdit:
        """The same for a program on that kind of device, with the call that does what the lines of
        a source cannot."""
        edit = self.edit(value, line)
        if not self.edited_by_call:
            return edit
        text = self.name if value is None else f"{self.name}={value}"
        return replace(edit, before=("import stepscope", apply_call([text])))

    def patch(self, value: Any, applied: Sequence[Applied], files: "SourceFiles") -> "FoundEdits":
        """The parts of a patch that write it into the source where it took effect, and the places
        left to the user. Unless a fix does it otherwise: arguments of the calls on those lines."""
        from stepscope.fixes.edit import locate

        if self.edited_by_call:
            return iter(())
        if self.edited_at_top:
            return locate.at_the_top(self, value, applied, files, bool(self.environment(value)))
        if self.rewrite is not None:
            places, words = locate.places(applied), self.edit(value, "").words
            return locate.rewritten(self, words, places, files, self.rewrite)
        if self.after_model is not None:
            words = self.edit(value, "").words
            return locate.after_the_model(self, words, self.after_model, applied, files)
        return locate.by_arguments(self, value, applied, files)

    def trainer_setting(self, value: Any, device: str | None = None) -> dict[str, str]:
        """The settings of Hugging Face's trainers that do the same, as they are written; empty
        where there are none. `device`: where the model runs, if that is known."""
        if self.argument is None or self.works_on != ProgramPart.LOADER:
            return {}
        return {f"dataloader_{self.argument}": self.argument_value(value)}
