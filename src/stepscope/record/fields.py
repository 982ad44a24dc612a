"""Typed records that are cheap to declare, since the probe imports them into the user's program."""

import typing
from typing import Any, ClassVar, NotRequired, Self, TypedDict, dataclass_transform


@dataclass_transform(kw_only_default=True)
class Record:
    """Typed like a dataclass, without its generated code: thirty of those take 3 ms to make.

    An instance's `__dict__` has the fields that were given; the rest are the class's defaults.
    """

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"

    def to_json(self) -> dict[str, object]:
        """The fields that were given, as plain data."""
        return {name: _plain(value) for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Checked against the declared types; unknown fields are dropped. Raises ValueError."""
        import msgspec

        return cls(**msgspec.convert(data, _shape(cls), dec_hook=_nested))


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


_shapes: dict[type[Record], Any] = {}


def _shape(cls: type[Record]) -> Any:
    """The same fields as a TypedDict, which keeps absent ones absent."""
    if cls in _shapes:
        return _shapes[cls]
    fields = {
        name: NotRequired[hint] if hasattr(cls, name) else hint
        for name, hint in typing.get_type_hints(cls).items()
        if typing.get_origin(hint) is not ClassVar
    }
    _shapes[cls] = TypedDict(cls.__name__, fields)  # type: ignore[operator]
    return _shapes[cls]


def _nested(cls: type[Any], data: Any) -> Any:
    if issubclass(cls, Record):
        return cls.from_json(data)
    raise NotImplementedError(cls)
