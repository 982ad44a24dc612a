"""Reading events one by one, with Python's own JSON reader: for text that is damaged or unusual."""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from json import JSONDecodeError, JSONDecoder
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import fields

from stepscope.trace.format import Drop, Repair
from stepscope.trace.kineto.blocks import BETWEEN
from stepscope.trace.kineto.events import (
    BY_PHASE,
    IGNORED_REASONS,
    NO_DURATION,
    Args,
    Instant,
    Label,
    LabelArgs,
    MemoryArgs,
    Span,
)

_AFTER_LIST = re.compile(r'\]\s*(?:,\s*"|\}|$)')
_LAST_END = re.compile(r'\}\s{0,999}(\])\s{0,999}(?:\}\s{0,999}$|,\s{0,999}"\w+"\s{0,999}:)')
_BETWEEN = re.compile(BETWEEN.pattern.decode())
_ENDS = 12  # characters: a number or word cut off by the end of the text is shorter
_REPLACEMENT = "\ufffd"  # what stands for bytes that are not UTF-8
_STRICT, _LENIENT = (
    JSONDecoder(strict=strict, parse_float=Decimal, parse_constant=lambda _: None)
    for strict in (True, False)
)


@dataclass(slots=True)
class Repaired:
    """What a piece of the list of events gave."""

    events: list[Any] = field(default_factory=list)
    repaired: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    closed: bool = False  # the list ended
    rest: bytes = b""  # what follows its end, or an event that is not whole yet


def repair(piece: bytes | bytearray, *, last: bool) -> Repaired:
    """Read a piece that starts between two events; `last` when nothing comes after it."""
    text = piece.decode("utf-8", "replace")
    replaced = text.count(_REPLACEMENT) > piece.count(_REPLACEMENT.encode())
    result = Repaired()
    position = 0
    while True:
        while text[position : position + 1] in (" ", "\t", "\r", "\n", ","):
            position += 1
        if position >= len(text):
            return result
        if text[position] == "]" and _AFTER_LIST.match(text, position):
            result.closed, result.rest = True, text[position + 1 :].encode()
            return result
        try:
            value, end = _value(text, position, result)
        except (ValueError, RecursionError) as error:
            cut_off = isinstance(error, JSONDecodeError) and (
                error.pos >= len(text) - _ENDS or error.msg.startswith("Unterminated string")
            )
            following = None
            if last or not cut_off:
                following = _BETWEEN.search(text, position) or _LAST_END.search(text, position)
            if not following and (last or cut_off):
                result.rest = text[position:].encode()
                return result
            result.dropped[Drop.BAD_JSON] += 1
            position = following.start(1) if following else len(text)
        else:
            if replaced and _REPLACEMENT in text[position:end]:
                result.repaired[Repair.BAD_UTF8] += 1
            _Repairer(result).add_event(value)
            position = end


def _value(text: str, position: int, result: Repaired) -> tuple[Any, int]:
    """What stands at a position, and where it ends."""
    try:
        return _STRICT.raw_decode(text, position)
    except JSONDecodeError as error:
        if not error.msg.startswith("Invalid control character"):
            raise
    found = _LENIENT.raw_decode(text, position)
    result.repaired[Repair.CONTROL_CHARACTER] += 1
    return found


_ARGS: dict[type[Struct], type[Struct]] = {Span: Args, Instant: MemoryArgs, Label: LabelArgs}


class _Repairer:
    """Brings one event's values to their types and notes what it had to change."""

    def __init__(self, result: Repaired) -> None:
        self._result = result

    def add_event(self, value: Any) -> None:
        """Make a typed event of a decoded one, or say why not."""
        kind = BY_PHASE.get(str(value.get("ph"))) if isinstance(value, dict) else None
        if kind is None:
            self._result.dropped[Drop.NO_EVENT] += 1
            return
        if kind in IGNORED_REASONS and kind is not Label:
            self._result.events.append(kind())
            return
        known: dict[str, Any] = {}
        for name in ("name", "cat"):
            if hasattr(kind, name):
                known[name] = self._text(value.get(name))
        for name in ("pid", "tid"):
            given = value.get(name)
            known[name] = given if type(given) is int else self._text(given)
        if kind is not Label:
            known["ts"] = self._number(value.get("ts"))
            if known["ts"] is None:
                self._result.dropped[Drop.NO_TIME] += 1
                return
        if kind is Span:
            duration = self._number(value.get("dur"))
            known["dur"] = NO_DURATION if duration is None else float(duration)
        if kind in _ARGS:
            given, args = value.get("args"), {}
            given = given if isinstance(given, dict) else {}
            for name, key, brought in _FIELDS[_ARGS[kind]]:
                found = None if given.get(key) is None else brought(self, given[key])
                if found is not None:
                    args[name] = found
            known["args"] = _ARGS[kind](**args)
        self._result.events.append(kind(**known))

    def _text(self, value: Any) -> str:
        if not isinstance(value, str):
            return "" if value is None else str(value)
        return value.encode("utf-8", "replace").decode()  # half a surrogate pair has no UTF-8

    def _number(self, value: Any) -> int | Decimal | None:
        """Exact; None where it is no number, or so large that it can only be a mistake."""
        if isinstance(value, str):
            try:
                value = Decimal(value.strip())
            except ArithmeticError:
                return None
            self._result.repaired[Repair.NUMBER_AS_TEXT] += 1
        if isinstance(value, Decimal):
            if not value.is_finite():
                return None
        elif type(value) is not int:
            return None
        if not -(2**64) < value < 2**64:
            self._result.repaired[Repair.NUMBER_TOO_LARGE] += 1
            return None
        return value  # type: ignore[no-any-return]

    def _whole(self, value: Any) -> int | None:
        number = self._number(value)
        return None if number is None else int(number)

    def _real(self, value: Any) -> float | None:
        number = self._number(value)
        return None if number is None else float(number)

    def _either(self, value: Any) -> int | str | None:
        return self._text(value) if isinstance(value, str) else self._whole(value)

    def _json(self, value: Any) -> Raw | None:
        try:
            return Raw(json.dumps(value, separators=(",", ":"), default=str).encode())
        except RecursionError:  # nested as deeply as could just be read
            return None


def _converter(kind: Any) -> Callable[[_Repairer, Any], Any]:
    """How a value is brought to a field's type."""
    options = set(getattr(kind, "__args__", (kind,))) - {type(None)}
    if options == {Raw}:
        return _Repairer._json
    if options == {str}:
        return _Repairer._text
    if str in options:
        return _Repairer._either
    return _Repairer._real if float in options else _Repairer._whole


_FIELDS: dict[type[Struct], list[tuple[str, str, Callable[[_Repairer, Any], Any]]]] = {
    kind: [(f.name, f.encode_name, _converter(f.type)) for f in fields(kind)]
    for kind in _ARGS.values()
}
