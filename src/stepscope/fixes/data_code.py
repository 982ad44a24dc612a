"""What one piece of compiled Python refers to, read from its bytecode. It is not run."""

import dis
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any, Final

from stepscope.fixes.data_names import words

ABSENT: Final = object()
_GLOBALS: Final = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
_MUTATORS: Final = words(
    "append appendleft extend insert pop popleft popitem remove clear rotate sort reverse"
)


@dataclass(slots=True)
class Reading:
    """The outside things a code object names."""

    chains: list[tuple[list[Any], str, int]] = field(default_factory=list)
    """Objects along a dotted name that starts at a global, that name as written, and its line."""
    names: dict[str, int] = field(default_factory=dict)
    """Attributes of things that are only known when it runs, with a line."""
    calls: set[str] = field(default_factory=set)
    """Those of them that are called right there."""
    sets: dict[str, int] = field(default_factory=dict)
    """Attributes and globals it changes, with a line."""
    products: int = 0
    """The line of a matrix product written as `@`; 0: none."""
    strings: set[str] = field(default_factory=set)
    inner: list[CodeType] = field(default_factory=list)
    """Functions written inside it."""


def read(code: CodeType, scope: Callable[[str], Any]) -> Reading:
    """Read a code object; `scope` gives a global or enclosing variable, or ABSENT."""
    found = Reading()
    chain: list[Any] = []
    text, own, line = "", False, code.co_firstlineno
    before = ""
    itself = _itself(code)

    def flush() -> None:
        if chain:
            found.chains.append((list(chain), text, line))
        chain.clear()

    for step in dis.get_instructions(code):
        op, name = step.opname, step.argval
        if op in ("CACHE", "PUSH_NULL", "COPY"):
            continue
        if step.positions is not None and step.positions.lineno:
            line = step.positions.lineno
        if op in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            found.names.setdefault(name, line)
            if op == "LOAD_METHOD" or "self" in step.argrepr.removesuffix(name):
                found.calls.add(name)
            if own and name in _MUTATORS:
                found.sets.setdefault(text, line)
            text += f".{name}"
            reached = member(chain[-1], name) if chain else ABSENT
            if reached is ABSENT:
                flush()
            else:
                chain.append(reached)
                found.names.pop(name, None)
            before = op
            continue
        flush()
        own = False
        if op in _GLOBALS and name != "__class__":  # which stands behind every `super()`
            text = name
            value = scope(name)
            if value is not ABSENT or op == "LOAD_GLOBAL":
                chain.append(value)
        elif op.startswith("LOAD_FAST"):
            text = name[-1] if isinstance(name, tuple) else str(name)
            own = text == itself
        elif op == "IMPORT_NAME":
            text = name
            module = sys.modules.get(name, ABSENT)
            chain.append(module)
        elif op == "IMPORT_FROM" and found.chains:
            module = found.chains[-1][0][0]
            value = member(module, name)
            found.chains.append(([module, value], name, line))
        elif op == "STORE_ATTR" and not (before.startswith("LOAD_FAST") and text != itself):
            found.sets.setdefault(text if text.endswith(f".{name}") else f"{text}.{name}", line)
        elif op in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            found.sets.setdefault(name, line)
        elif op == "BINARY_OP" and "@" in step.argrepr:
            found.products = line
        elif op == "LOAD_CONST" and isinstance(name, str):
            found.strings.add(name)
        elif isinstance(name, CodeType):
            found.inner.append(name)
        before = op
    flush()
    return found


def _itself(code: CodeType) -> str:
    """What a method calls its own object; "self" elsewhere, for functions inside methods."""
    outer = code.co_qualname.rpartition(".")[0]
    method = code.co_argcount and outer and not outer.endswith("<locals>")
    return code.co_varnames[0] if method else "self"


def member(owner: Any, name: str) -> Any:
    """A module's or class's member, without running anything; ABSENT elsewhere."""
    if isinstance(owner, ModuleType):
        value = vars(owner).get(name, ABSENT)
        return sys.modules.get(f"{owner.__name__}.{name}", ABSENT) if value is ABSENT else value
    if isinstance(owner, type):
        return inspect.getattr_static(owner, name, ABSENT)
    return ABSENT


def scope_of(function: Any) -> Callable[[str], Any]:
    """How a function finds its globals and the variables it closes over."""
    closed = dict(_cells(function))
    builtins = function.__globals__.get("__builtins__", {})
    builtins = vars(builtins) if isinstance(builtins, ModuleType) else builtins

    def find(name: str) -> Any:
        for place in (closed, function.__globals__, builtins):
            if name in place:
                return place[name]
        return ABSENT

    return find


def _cells(function: Any) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
