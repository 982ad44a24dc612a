"""What can be told of a dataset, a collate function or a sampler without running any of it."""

from dataclasses import dataclass, field
from typing import Any

from stepscope.fixes.data_moves import version


@dataclass(slots=True)
class Look:
    """Each is a reason in a few words with its place; None where nothing of the kind was seen."""

    draws: str | None = None
    """It draws random numbers."""
    unknown: str | None = None
    """Something in it could not be looked through."""
    keeps: str | None = None
    """It changes itself from one sample to the next.

    A dictionary it fills is taken for a memo, a global list it adds to for a log.
    """
    sums: str | None = None
    """It adds up tensors, which rounds otherwise with another number of threads."""
    cuda: str | None = None
    """It holds or makes things on the GPU, which forked processes cannot use."""
    handle: str | None = None
    """It holds an open file or connection, which processes cannot share."""
    splits: bool = False
    """It asks which worker it runs in."""
    parts: list[Any] = field(default_factory=list)
    """Objects it consists of whose attributes the program may set."""

    def varies(self) -> str | None:
        """Why two processes, or two times, may not give the same sample; None where they will."""
        if self.draws:
            return f"other random draws: {self.draws}"
        if self.unknown:
            return f"perhaps other random draws: {self.unknown}"
        return self.keeps and f"perhaps other samples: {self.keeps}"


def look(*things: Any) -> Look:
    """Look through things and all they hold and call."""
    from stepscope.fixes.data_walk import Walker

    walker = Walker()
    try:
        for thing in things:
            walker.visit(thing)
        walker.finish()
    except Exception as problem:
        walker.look.unknown = walker.look.unknown or f"looking through it failed ({problem!r})"
    return walker.look


class Changes:
    """Notices when the program sets attributes of a dataset or of anything it consists of."""

    def __init__(self, parts: list[Any]) -> None:
        self._state: list[tuple[Any, dict[str, Any]]] = []
        for part in parts:
            self._state.append((part, {name: _held(v) for name, v in vars(part).items()}))

    def any(self) -> bool:
        """Whether something was set, or a tensor changed in place, since this was made."""
        return any(_differs(vars(part), before) for part, before in self._state)


_SMALL = 64
_Held = tuple[Any, Any]


def _held(value: Any) -> _Held:
    """A value, kept so that its id stays its own, with what to compare besides its identity."""
    return value, _inside(value)


def _inside(value: Any) -> Any:
    if type(value) in (list, dict):
        held = value.values() if type(value) is dict else value
        return list(map(id, held)) if len(value) <= _SMALL else len(value)
    return version(value) if hasattr(type(value), "untyped_storage") else None


def _differs(now: dict[str, Any], before: dict[str, _Held]) -> bool:
    if len(now) != len(before):
        return True
    for name, value in now.items():
        if name not in before:
            return True
        old, inside = before[name]
        if value is not old:
            if not isinstance(value, (int, float, str)) or type(value) is not type(old):
                return True
            if value != old:
                return True
        elif _inside(value) != inside:
            return True
    return False
