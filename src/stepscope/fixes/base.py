"""What a fix is, and what it works with inside the program."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from stepscope.record.errors import UsageError

if TYPE_CHECKING:
    from stepscope.probe.points.seams import Seams


class FixKind(StrEnum):
    """What a fix may change: nothing, rounding and random draws, or training itself."""

    EXACT = "exact"
    NUMERIC = "numeric"
    SEMANTIC = "semantic"


@dataclass(frozen=True, slots=True)
class SourceEdit:
    """How to write a fix into the program."""

    words: str
    """What to do, in a sentence."""
    line: str | None = None
    """The line it was asked for, changed; None where another place is to be changed."""
    before: tuple[str, ...] = ()
    """Lines to put before it, at its indentation."""


class FixContext:
    """A fix's way into the program it is applied to, and its way of saying what became of it."""

    def __init__(self, fix: "Fix", value: Any, seams: "Seams") -> None:
        self.seams = seams
        self._fix = fix
        self._value = value
        self._said: set[tuple[str, str]] = set()

    def applied(self, what: str, kind: FixKind | None = None) -> None:
        """It took hold: where, and on what. `kind`: where that is not the fix's usual one."""
        self._say("applied", what, kind or self._fix.kind)

    def unfit(self, reason: str) -> None:
        """It does not apply to something (or to anything) here, and why."""
        self._say("not applicable", reason, None)

    def broke(self, reason: str) -> None:
        """It took hold, and then the program could not go on."""
        self._say("broke", reason, None)

    def place(self) -> str:
        """`file:line` of the user's code that led to the present call."""
        from stepscope.fixes.inspect.user_code import user_location

        return user_location()

    def _say(self, state: str, text: str, kind: FixKind | None) -> None:
        if (state, text) in self._said or self.seams.inert:
            return
        self._said.add((state, text))
        self.seams.core.facts.write(
            "fix", name=self._fix.name, state=state, text=text, kind=kind and str(kind)
        )


class Fix:
    """One fix. torch may be imported in `install` and what it calls, nowhere else."""

    name: str
    group: str
    """data, waiting, arithmetic, launch, memory or batch."""
    title: str
    """What it does, in one line."""
    kind: FixKind
    effort: str
    """How much its edit of the source is, in a few words."""
    needs: str | None = None
    """The device without which it has nothing to do: "cuda", or None."""
    values: Sequence[str] = ()
    """What may stand after `=`; empty where nothing may. `N` stands for a number."""
    suggested: Sequence[str] = ()
    """Values worth trying, the best guess first."""
    bad_with: Sequence[str] = ()
    """Fixes it must not be combined with."""
    missing: str = "the program never came to it"
    """What to say when it was asked for and took hold of nothing."""

    def parse(self, text: str | None) -> Any:
        """The value in `--fix name=text`, checked. Raises UsageError. None: none was given."""
        if text is not None and not self.values:
            raise UsageError(f"--fix {self.name} takes no value")
        return self.one_of(text) if text is not None else None

    def one_of(self, text: str) -> Any:
        """A number where numbers are allowed, else one of the values."""
        if (
            "N" in self.values
            and text.isdecimal()
            and text.isascii()
            and len(text) < 7
            and int(text) > 0
        ):
            return int(text)
        if text in self.values and text != "N":
            return text
        allowed = ", ".join("a number" if value == "N" else value for value in self.values)
        raise UsageError(f"--fix {self.name}={text}: use {allowed}")

    def environment(self, value: Any) -> dict[str, str]:
        """Variables the program must be started with."""
        return {}

    def install(self, value: Any, hands: FixContext) -> None:
        """Take hold of the seams. In the program's process, just after torch was imported."""
        raise NotImplementedError

    def explain(self, error: BaseException, line: str) -> str | None:
        """Why the program cannot go on with this fix; None if the error is not its doing.

        `line` is the user's source line that raised. Asked when an exception ends the program.
        """
        return None

    def edit(self, value: Any, line: str) -> SourceEdit:
        """How to write it into the program, for the line it took hold of."""
        raise NotImplementedError
