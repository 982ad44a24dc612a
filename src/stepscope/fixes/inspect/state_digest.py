"""The current state that samples depend on, in comparable form.

Everything reachable is digested within a budget: plain values by value, tensors by their version
and content, arrays and shared values by content, containers item by item, objects of the program's
and of torch attribute by attribute, files that are named by size and time. Objects of other
libraries count only by identity and plain attributes: they may fill their own caches.
"""

import array
import ctypes
import os
import re
import stat
import sys
import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from stepscope.fixes.inspect.dataset_code import ABSENT, held_at
from stepscope.fixes.inspect.tensors import bytes_of, memory_of
from stepscope.fixes.lazy import torch
from stepscope.probe.sites import is_user_file
from stepscope.record.fix import SourceLine

Key = tuple[int, str]
"""The id of an object, and the name of an attribute of it, or of a global."""


@dataclass(frozen=True, slots=True)
class StateSlot:
    """A name that code uses, and its owner."""

    holder: Any
    name: str
    text: str
    """As it is written there."""
    place: SourceLine | None = None


@dataclass(slots=True)
class Budget:
    """How much one digest may inspect."""

    items: int
    bytes: int
    files: int


EACH_BATCH: Final = Budget(1024, 1 << 20, 0)
"""Two milliseconds at most; files are left alone."""
EACH_EPOCH: Final = Budget(200_000, 512 << 20, 65_536)
"""Half a second at most."""
_OUTGROWN: Final = "outgrown"
_PATH: Final = re.compile(r"[^\0\n]*(/|\.\w{1,6}$)")
_DEEP: Final = 12
_SMALL: Final = 64
_AT_ONCE: Final = 16  # plain items cost as much as one that is inspected
_FIXED: Final = frozenset((type(None), bool, int, float, complex, str, bytes, range, slice))
_LIKE_OURS: Final = ("torch", "torchvision")
_OUTSIDE: Final = (FunctionType, BuiltinFunctionType, ModuleType, type)
_CTYPES: Final = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)


class StateDigest:
    """The digest of some objects and of named things. Containers named in `memos` may grow;
    `without` is not entered."""

    def __init__(
        self,
        roots: Iterable[Any],
        slots: Iterable[StateSlot],
        budget: Budget,
        memos: Set[str],
        without: Any = None,
    ) -> None:
        self.tokens: dict[Key, Any] = {}
        self.texts: dict[Key, str] = {}
        self.places: dict[Key, SourceLine | None] = {}
        self.exceeded: Key | None = None
        """Where the budget ran out; None: it sufficed."""
        self._memory: list[tuple[int, int, Key]] = []  # first and last byte of tensors and arrays
        self._left, self._for_memos = replace(budget), replace(budget)
        self._looks_at_files = bool(budget.files)
        self._memos, self._in_memo = memos, False
        self._seen: set[int] = {id(without)}
        self._kept: list[Any] = []  # what is known by its id stays alive
        self._now: Key = (0, "")
        for slot in slots:
            key = (id(slot.holder), slot.name)
            self.places[key] = slot.place
            self._kept.append(slot.holder)
            self._add(key, slot.text, held_at(slot.holder, slot.name), 0)
        for root in roots:
            self._add((id(root), ""), type(root).__qualname__, root, 0)

    def holder(self, memory: tuple[int, int]) -> Key | None:
        """What holds some of the bytes between a first and a last one; None: nothing digested."""
        first, last = memory
        place = bisect_left(self._blocks, (last + 1,)) - 1
        return self._blocks[place][2] if place >= 0 and self._blocks[place][1] >= first else None

    @cached_property
    def _blocks(self) -> list[tuple[int, int, Key]]:
        """The same memory without overlaps, in order."""
        blocks: list[tuple[int, int, Key]] = []
        for first, last, key in sorted(self._memory):
            if blocks and first <= blocks[-1][1]:
                start, end, key = blocks.pop()
                blocks.append((start, max(end, last), key))
            else:
                blocks.append((first, last, key))
        return blocks

    def _add(self, key: Key, text: str, value: Any, depth: int) -> None:
        before, self._now = self._now, key
        self.texts[key] = text
        if key[1] in self._memos:
            with self._memo():
                self.tokens[key] = self._token(value, depth)
        else:
            self.tokens[key] = self._token(value, depth)
        self._now = before

    @contextmanager
    def _memo(self) -> Iterator[None]:
        """Memos have a separate budget, so that they do not use up the main one."""
        before, self._left, self._in_memo = self._left, self._for_memos, True
        yield
        self._left, self._in_memo = before, False

    def _spend(self, items: int = 1, nbytes: int = 0, files: int = 0) -> bool:
        """Whether there is room for this."""
        left = self._left
        fits = items <= left.items and nbytes <= left.bytes and files <= left.files
        if fits:
            left.items -= items
            left.bytes -= nbytes
            left.files -= files
        elif not self._in_memo:
            self.exceeded = self.exceeded or self._now
        return fits

    def _identity(self, value: Any) -> int:
        self._kept.append(value)
        return id(value)

    def _token(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _FIXED:
            return self._fixed(value, kind)
        if isinstance(value, _OUTSIDE):
            return self._code(value, depth)
        if depth > _DEEP or not self._spend():
            self.exceeded = self.exceeded or self._now
            return self._identity(value)
        if hasattr(kind, "untyped_storage") and hasattr(value, "_version"):
            return self._tensor(value)
        if kind.__module__.startswith("numpy") and hasattr(value, "tobytes"):
            return self._ndarray(value) if hasattr(value, "ctypes") else value.tobytes()
        if isinstance(value, _CTYPES):
            return bytes(memoryview(value))
        if isinstance(value, (bytearray, array.array)):
            return zlib.crc32(value) if self._spend(nbytes=len(value)) else self._identity(value)
        if isinstance(value, PurePath):
            return str(value), self._file(str(value))
        if value is os.environ:
            return dict(os.environ)
        if id(value) in self._seen:
            return id(value)
        return self._whole(value, kind, depth)

    def _whole(self, value: Any, kind: type, depth: int) -> Any:
        """Compound things; each is entered once."""
        self._seen.add(self._identity(value))
        if isinstance(value, MethodType):
            return self._token(value.__self__, depth + 1), id(value.__func__)
        if isinstance(value, partial):
            return self._sequence((value.func, value.args, value.keywords), depth)
        if kind.__module__ == "multiprocessing.sharedctypes":
            return self._token(value.get_obj(), depth + 1)
        if isinstance(value, dict):
            return self._dictionary(value, depth)
        if isinstance(value, (list, tuple, set, frozenset, deque)):
            if isinstance(value, (tuple, frozenset)):
                self._seen.discard(id(value))
            return kind, self._sequence(value, depth)
        return id(value) if self._in_memo else self._object(value, kind, depth)

    def _fixed(self, value: Any, kind: type) -> Any:
        found = self._file(value) if kind is str else None
        return kind, repr(value) if kind in (float, complex) else value, found

    def _file(self, path: str) -> Any:
        """Size and time of a path; for a folder, those of its entries."""
        if not self._looks_at_files or not is_path(path) or not self._spend(files=1):
            return None
        try:
            found = os.stat(path)
            if not stat.S_ISDIR(found.st_mode):
                return found.st_mtime_ns, found.st_size
            return self._folder(path)
        except (OSError, ValueError):
            self._left.files += 1
            return None

    def _folder(self, path: str) -> Any:
        if os.path.realpath(path) in (os.getcwd(), os.path.expanduser("~"), os.sep):
            return None
        with os.scandir(path) as entries:
            files = [entry for entry in entries if entry.is_file()]
        if not self._spend(files=len(files)):
            return None
        stats = [(entry.name, entry.stat()) for entry in files]
        return hash(tuple(sorted((name, one.st_mtime_ns, one.st_size) for name, one in stats)))

    def _tensor(self, tensor: Any) -> Any:
        """By content if that is cheap, else by torch's count of changes."""
        if (memory := memory_of(tensor)) is not None:
            self._memory.append((*memory, self._now))
        size = tensor.numel() * tensor.element_size()
        plain = tensor.device.type == "cpu" and tensor.layout == torch.strided
        if not plain or tensor.is_quantized or size > self._left.bytes:
            version = None if tensor.is_inference() else tensor._version
            return self._identity(tensor), version
        self._left.bytes -= size
        data = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
        whole = data.view(torch.uint8).numpy() if size else b""
        return tuple(tensor.shape), str(tensor.dtype), zlib.crc32(whole)

    def _ndarray(self, array: Any) -> Any:
        if not array.flags.writeable and not hasattr(array.base, "flags"):
            file = getattr(array, "filename", None)
            return self._identity(array), file and self._file(str(file))
        if array.dtype.hasobject:
            return array.shape, self._sequence(array.ravel().tolist(), 0)
        if not self._spend(nbytes=array.nbytes):
            return self._identity(array), array.shape
        self._memory += [(*bytes_of(array), self._now)] if array.size else []
        whole = array.reshape(-1).view("uint8") if array.size else b""
        return array.shape, str(array.dtype), zlib.crc32(whole)

    def _dictionary(self, value: dict[Any, Any], depth: int) -> Any:
        if self._outgrows(len(value)):
            return _OUTGROWN if self._in_memo else self._too_many(value)
        items = list(dict.items(value))
        if len(items) > _SMALL and not self._in_memo:
            known = self._many([item for _, item in items])
            if known is not None:
                self._kept.append([key for key, _ in items])
                return hash(tuple(id(key) for key, _ in items)), known
        if len(items) > self._left.items:
            return _OUTGROWN if self._in_memo else self._too_many(value)
        return {_name(key): self._token(item, depth + 1) for key, item in items}

    def _sequence(self, value: Any, depth: int) -> Any:
        if self._outgrows(len(value)):
            return _OUTGROWN if self._in_memo else self._too_many(value)
        items = list(value)
        if len(items) > _SMALL and not self._in_memo:
            known = self._many(items)
            if known is not None:
                return known
        if len(items) > self._left.items:
            return _OUTGROWN if self._in_memo else self._too_many(value)
        return [self._token(item, depth + 1) for item in items]

    def _outgrows(self, count: int) -> bool:
        """Whether there are too many items even to compare by identity."""
        return count // _AT_ONCE > self._left.items

    def _too_many(self, value: Any) -> Any:
        self.exceeded = self.exceeded or self._now
        return self._identity(value), len(value)

    def _many(self, items: list[Any]) -> Any:
        """Many immutable items, by identity; None: they are mutable."""
        kinds = set(map(type, items))
        inner: list[Any] = list(chain.from_iterable(items)) if kinds == {tuple} else []
        if not (kinds <= _FIXED or (inner and set(map(type, inner)) <= _FIXED)):
            return None
        if not self._spend((len(items) + len(inner)) // _AT_ONCE):
            return self._identity(items[0]), len(items)
        self._kept.append(items)
        return len(items), hash(tuple(map(id, items))), self._files(inner or items)

    def _files(self, items: list[Any]) -> int:
        """Files of many paths; empty if the first ones are not files."""
        texts = [each for each in items if type(each) is str] if self._looks_at_files else []
        if not any(map(self._file, texts[:_SMALL])):
            return 0
        return hash(tuple(map(self._file, texts)))

    def _code(self, value: Any, depth: int) -> Any:
        """Functions with their closures; their globals are tracked by name."""
        known = self._identity(value)
        if not isinstance(value, FunctionType) or id(value) in self._seen or not value.__closure__:
            return known
        self._seen.add(known)
        if not is_user_file(value.__code__.co_filename):
            return known
        return known, [self._token(held_at(cell, ""), depth + 1) for cell in value.__closure__]

    def _object(self, value: Any, kind: type, depth: int) -> Any:
        held = dict(getattr(value, "__dict__", ()))
        for base in kind.__mro__:
            names = base.__dict__.get("__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                found = getattr(value, name, ABSENT)
                if found is not ABSENT and not name.startswith("__"):
                    held[name] = found
        ours = _is_ours(kind)
        for name, item in held.items():
            if ours or type(item) in _FIXED:
                self._add((id(value), str(name)), f"{kind.__qualname__}.{name}", item, depth + 1)
        return id(value)


def difference(old: StateDigest, new: StateDigest, memos: Set[str]) -> Key | None:
    """The first name whose value differs; None: nothing does. Memos may have grown."""
    for key in dict.fromkeys((*old.tokens, *new.tokens)):
        before, after = old.tokens.get(key, ABSENT), new.tokens.get(key, ABSENT)
        if before != after and not (key[1] in memos and _grown(before, after)):
            return key
    return None


def _grown(before: Any, after: Any) -> bool:
    """Whether a memo still has all its entries; one that was None may be filled now."""
    if before == after or before in (ABSENT, _EMPTY) or _OUTGROWN in (before, after):
        return True
    if isinstance(before, dict) and isinstance(after, dict):
        return all(key in after and _grown(item, after[key]) for key, item in before.items())
    if isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after) == 2:
        return before[0] == after[0] and _grown(before[1], after[1])
    if isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        return all(map(_grown, before, after))
    return False


_EMPTY: Final = (type(None), None, None)


def is_path(text: str) -> bool:
    """Whether a text looks like the path of a file."""
    short = len(text) < 512 and (" " not in text or os.path.isabs(text))
    return short and _PATH.match(text) is not None


def _name(key: Any) -> Any:
    return key if type(key) in _FIXED else id(key)


def _is_ours(kind: type) -> bool:
    """Whether a class is the program's, or one of torch that consists of what it is given."""
    top = kind.__module__.partition(".")[0]
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return top in _LIKE_OURS or (file is not None and is_user_file(file)) or top == "__main__"
