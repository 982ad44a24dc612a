"""What a code object changes outside itself, read from its bytecode without running it.

The stack is followed by name: every value on it knows which attribute or global it is, or was
computed from. Where paths meet, the stack of the path that jumped is taken.
"""

import dis
import sys
from dataclasses import dataclass, field
from enum import Enum, auto
from types import CodeType
from typing import Any, Final

from stepscope.fixes.inspect.dataset_code import word_set

_MUTATORS: Final = word_set(
    "append appendleft extend extendleft insert pop popleft popitem remove clear rotate sort"
    " reverse add discard update difference_update intersection_update subtract fill put"
    " setdefault __setitem__ __delitem__"
)
_ADDING: Final = word_set("append appendleft extend insert add")
_MEMO: Final = "setdefault"
_JUMPS: Final = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
_ENDS: Final = ("RETURN", "RAISE", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
_FREE: Final = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR")


class _Root(Enum):
    """Where a named value begins."""

    OWN = auto()
    """At the object whose method it is."""
    OUTSIDE = auto()
    """At a global, or a variable of an enclosing function."""
    GIVEN = auto()
    """At a parameter."""


@dataclass(frozen=True, slots=True)
class _Value:
    """One value on the stack."""

    name: str | None = None
    """As written: `self.visits`; None where it has no name."""
    root: _Root | None = None
    inside: bool = False
    """Whether it is an item of what has that name."""
    made_from: frozenset[str] = frozenset()
    """Names of what it was computed from."""
    constant: bool = False

    def derived(self) -> frozenset[str]:
        return self.made_from | {self.name} if self.name else self.made_from

    def item(self) -> "_Value":
        return _Value(self.name, self.root, True, self.derived())


_UNKNOWN: Final = _Value()


@dataclass(slots=True)
class Stores:
    """What code changes, each with a line."""

    attributes: dict[str, int] = field(default_factory=dict)
    """Attributes of its own object that it sets."""
    others: dict[str, int] = field(default_factory=dict)
    """Anything else: globals, attributes of attributes, items of containers that outlive it."""
    called: dict[str, int] = field(default_factory=dict)
    """Things that outlive it of which it calls a method named like those that change containers."""
    given: dict[str, int] = field(default_factory=dict)
    """Parameters it changes in place."""
    logs: dict[str, int] = field(default_factory=dict)
    """Globals it adds to."""
    reads: set[str] = field(default_factory=set)
    """Globals it uses for anything but adding to them."""
    memos: set[str] = field(default_factory=set)
    """Last names of containers that keep what was computed from other things."""


def read_stores(code: CodeType) -> Stores:
    """Follow a code object from its first instruction to its last."""
    reader = _StackReader(code)
    for step in dis.get_instructions(code):
        if step.opname not in ("CACHE", "RESUME", "NOP", "EXTENDED_ARG", "PRECALL", "KW_NAMES"):
            reader.follow(step)
    return reader.found


class _StackReader:
    def __init__(self, code: CodeType) -> None:
        self.found = Stores()
        self._stack: list[_Value] = []
        self._at_target: dict[int, list[_Value]] = {}
        self._ended = False
        self._line = code.co_firstlineno
        outer = code.co_qualname.rpartition(".")[0]
        method = bool(code.co_argcount and outer and not outer.endswith("<locals>"))
        self._itself = code.co_varnames[0] if method else "self"
        count = code.co_argcount + code.co_kwonlyargcount  # `*args` and `**kwargs` are new
        self._locals = {name: _Value(name, _Root.GIVEN) for name in code.co_varnames[:count]}
        self._enclosing = frozenset(code.co_freevars)
        self._own_cells = frozenset(code.co_cellvars)

    def follow(self, step: dis.Instruction) -> None:
        if step.positions is not None and step.positions.lineno:
            self._line = step.positions.lineno
        if self._ended:
            self._stack = list(self._at_target.get(step.offset, ()))
            self._ended = False
        op = step.opname
        before = len(self._stack)
        if not self._named(op, step.argval, step) and not self._storing(op, step.argval):
            self._other(op, step)
        if step.opcode in _JUMPS:
            self._at_target.setdefault(step.argval, self._stack[: max(before, 1)])
        self._ended = op.startswith(_ENDS)

    def _named(self, op: str, name: Any, step: dis.Instruction) -> bool:
        """Instructions that put something with a name on the stack."""
        if op.startswith("LOAD_FAST"):
            for each in name if isinstance(name, tuple) else (name,):
                self._push(self._local(each))
        elif op.startswith(_FREE):
            effect = dis.stack_effect(step.opcode, step.arg, jump=False)
            known = self._local(name) if name in self._own_cells else _Value(name, _Root.OUTSIDE)
            pushed = [_Value("self", _Root.OWN) if name == self._itself else known]
            pushed += [_UNKNOWN] * (effect - 1)
            for value in pushed if sys.version_info >= (3, 13) else reversed(pushed):
                self._push(value)
        elif op in ("LOAD_ATTR", "LOAD_METHOD"):
            self._attribute(name, dis.stack_effect(step.opcode, step.arg, jump=False))
        elif op == "LOAD_CONST" or op in ("LOAD_SMALL_INT", "RETURN_CONST"):
            self._push(_Value(constant=True))
        elif op == "COPY":
            depth = step.arg or 1
            self._push(self._stack[-depth] if len(self._stack) >= depth else _UNKNOWN)
        elif op == "SWAP":
            depth = step.arg or 1
            if len(self._stack) >= depth:
                self._stack[-1], self._stack[-depth] = self._stack[-depth], self._stack[-1]
        elif op == "GET_ITER":
            self._push(self._take())
        elif op == "FOR_ITER":
            self._push(self._stack[-1].item() if self._stack else _UNKNOWN)
        else:
            return False
        return True

    def _storing(self, op: str, name: Any) -> bool:
        """Instructions that store something."""
        if op.startswith("STORE_FAST"):
            both = name if isinstance(name, tuple) else (name,)
            self._locals[both[0]] = self._take()
            if op == "STORE_FAST_STORE_FAST":
                self._locals[both[1]] = self._take()
            elif len(both) == 2:
                self._push(self._local(both[1]))
        elif op == "STORE_DEREF" and name in self._own_cells:
            self._locals[name] = self._take()
        elif op in ("STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL"):
            if op != "DELETE_GLOBAL":
                self._use(self._take())
            self.found.others.setdefault(name, self._line)
        elif op in ("STORE_ATTR", "DELETE_ATTR"):
            owner = self._take()
            if op == "STORE_ATTR":
                self._use(self._take())
            self._set_attribute(owner, name)
        elif op in ("STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR"):
            for _ in range(2 if op == "STORE_SLICE" else 1):
                self._use(self._take())
            container = self._take()
            value = _Value(constant=True) if op == "DELETE_SUBSCR" else self._take()
            self._use(value)
            self._set_item(container, value)
        else:
            return False
        return True

    def _other(self, op: str, step: dis.Instruction) -> None:
        """All others: what they leave was computed from what they take."""
        effect = dis.stack_effect(step.opcode, step.arg, jump=False)
        if op == "CALL":  # before 3.12 PRECALL takes the arguments
            effect = -(step.arg or 0) - 1
        if op == "UNPACK_SEQUENCE":
            whole = self._take().item()
            self._stack += [whole] * (step.arg or 0)
            return
        subscript = op == "BINARY_SUBSCR" or (op == "BINARY_OP" and step.argrepr == "[]")
        if subscript:
            self._use(self._take())
            container = self._take()
            self._use(container)
            self._push(container.item())
            return
        pops = op.startswith(("POP_", "RETURN", "RAISE", "YIELD", "END_", "DELETE_"))
        taken = [self._take() for _ in range(max(0, -effect + (0 if pops else 1)))]
        made_from: frozenset[str] = frozenset()
        for value in taken:
            self._use(value)
            made_from |= value.derived()
        if effect > 0:
            self._stack += [_UNKNOWN] * (effect - 1)
        if not pops or effect > 0:
            self._push(_Value(made_from=made_from))

    def _attribute(self, name: str, effect: int) -> None:
        owner = self._take()
        reached = _UNKNOWN
        if owner.name is not None:
            in_place = name.endswith("_") and not name.startswith("_")  # as torch names them
            if name in _MUTATORS or in_place:
                self._change(owner, name)
            reached = _Value(f"{owner.name}.{name}", owner.root, owner.inside, owner.derived())
        elif owner.made_from:
            reached = _Value(made_from=owner.made_from)
        self._push(reached)
        self._stack += [_UNKNOWN] * effect

    def _change(self, owner: _Value, method: str) -> None:
        """A method that changes its object is called."""
        name = owner.name or ""
        if owner.root is _Root.GIVEN:
            if not owner.inside and "." not in name and method != "update":
                self.found.given.setdefault(name, self._line)
        elif method == _MEMO and not owner.inside:
            self.found.memos.add(_last(name))
        elif owner.root is _Root.OUTSIDE and method in _ADDING and not owner.inside:
            self.found.logs.setdefault(name, self._line)
        elif owner.root is _Root.OUTSIDE or "." in name:
            self.found.called.setdefault(name, self._line)

    def _set_attribute(self, owner: _Value, name: str) -> None:
        if owner.root is _Root.OWN and owner.name is not None:
            own = "." not in owner.name and not owner.inside
            kind = self.found.attributes if own else self.found.others
            kind.setdefault(f"{owner.name}.{name}", self._line)
        elif owner.root is _Root.OUTSIDE:
            self.found.others.setdefault(f"{owner.name}.{name}", self._line)

    def _set_item(self, container: _Value, value: _Value) -> None:
        name = container.name
        if name is None or container.root is None:
            return
        if container.root is _Root.GIVEN:
            self.found.given.setdefault(name, self._line)
            return
        updated = name in value.derived()
        if updated or (value.constant and not container.inside):
            self.found.others.setdefault(name, self._line)
        elif not container.inside:
            self.found.memos.add(_last(name))

    def _use(self, value: _Value) -> None:
        if value.root is _Root.OUTSIDE and value.name is not None:
            self.found.reads.add(value.name)

    def _local(self, name: str) -> _Value:
        if name == self._itself and self._locals.get(name, _UNKNOWN).root in (None, _Root.GIVEN):
            return _Value("self", _Root.OWN)
        return self._locals.get(name, _UNKNOWN)

    def _push(self, value: _Value) -> None:
        self._stack.append(value)

    def _take(self) -> _Value:
        return self._stack.pop() if self._stack else _UNKNOWN


def _last(name: str) -> str:
    return name.rpartition(".")[2]
