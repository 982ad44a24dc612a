"""Documents from what a test cares about: zero values fill in the rest."""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from stepscope.analyze.run.document import from_json
from stepscope.record.fields import Record

_S = TypeVar("_S")


def made(kind: type[_S], given: Mapping[str, Any] | None = None, **fields: Any) -> _S:
    """A Struct or Record with these fields; nested mappings may be partial too."""
    filled = _filled(kind, {**(given or {}), **fields})
    return kind.from_json(filled) if issubclass(kind, Record) else from_json(filled, kind)


def _filled(hint: Any, value: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if value is None:
        return _zero(hint)
    if isinstance(value, msgspec.Struct | Record):
        return msgspec.to_builtins(value, enc_hook=Record.to_json)
    if origin in (Union, types.UnionType):
        return _filled(next(one for one in inner if one is not type(None)), value)
    if origin in (list, tuple, Sequence):
        return [_filled(inner[0], one) for one in value]
    if origin in (dict, Mapping):
        return {key: _filled(inner[1], one) for key, one in value.items()}
    if hint is int and isinstance(value, float):
        return int(value)
    if hint is Any or not isinstance(value, Mapping):
        return value
    found = {}
    for name, field in get_type_hints(hint).items():
        if name in value:
            found[name] = _filled(field, value[name])
        elif get_origin(field) is not ClassVar and not _has_default(hint, name):
            found[name] = _zero(field)
    return found


def _has_default(kind: type, name: str) -> bool:
    if issubclass(kind, msgspec.Struct):
        return not next(f for f in msgspec.structs.fields(kind) if f.name == name).required
    if dataclasses.is_dataclass(kind):
        (field,) = (one for one in dataclasses.fields(kind) if one.name == name)
        return field.default is not dataclasses.MISSING
    return hasattr(kind, name)


def _zero(hint: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is type(None) or type(None) in inner:
        return None
    if origin is not None:
        return {} if origin in (dict, Mapping) else []
    if issubclass(hint, Enum):
        return next(iter(hint)).value
    return hint() if hint in (int, float, str, bool) else _filled(hint, {})
