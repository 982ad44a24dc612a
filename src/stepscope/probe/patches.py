"""Patching other people's modules: run a callback when a module has been imported, set attributes,
and restore them.

A module's own loader gets a timed `exec_module` for that one import; nothing stays behind on
loaders, specs or modules.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from time import monotonic_ns
from types import ModuleType
from typing import Any

from stepscope.probe.sites import is_user_file

_ABSENT = object()


def drop_caller_frame(error: BaseException) -> None:
    """Take the caller's frame out of a traceback, so that the program's own is all one sees. From
    Python 3.11 on, a bare `raise` after it does not put the frame back."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


class Patches:
    """Remembers what stood where, so that everything can be restored."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any, Any]] = []
        self._away: set[int] = set()  # places of those that are suspended

    def set(self, owner: Any, name: str, value: Any) -> None:
        self._saved.append((owner, name, vars(owner).get(name, _ABSENT), value))
        setattr(owner, name, value)

    def suspend(self, of: Any = None) -> None:
        """Have everything, or what `of` owns, as it was for a while. What the program has put in
        our place stays."""
        for place in range(len(self._saved) - 1, -1, -1):
            owner, name, value, ours = self._saved[place]
            if (of is None or of is owner) and self._put(owner, name, ours, value):
                self._away.add(place)

    def resume(self, of: Any = None) -> bool:
        """After `suspend`: put in place again what the program left as it was. Whether that was all
        that was taken away."""
        whole = True
        for place in sorted(self._away):
            owner, name, value, ours = self._saved[place]
            if of is None or of is owner:
                self._away.discard(place)
                whole = self._put(owner, name, value, ours) and whole
        return whole

    def release(self, owner: Any, name: str | None = None) -> bool:
        """Undo what `owner` has of ours, or one name of it, for good. Whether there was any."""
        found = False
        for place, (of, called, value, ours) in enumerate(self._saved):
            if of is owner and name in (None, called) and ours is not value:
                self._put(of, called, ours, value)
                self._saved[place] = of, called, value, value
                found = True
        return found

    def restore(self) -> None:
        """Undo everything, last first. What the program has put in our place stays."""
        while self._saved:
            owner, name, value, ours = self._saved.pop()
            self._put(owner, name, ours, value)
        self._away.clear()

    def _put(self, owner: Any, name: str, expected: Any, value: Any) -> bool:
        if expected is value:
            return True
        if vars(owner).get(name, _ABSENT) is not expected:
            return False
        if value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
        return True


_WORTH_NOTING_NS = 5_000_000


class ImportWatch:
    """A finder at the head of sys.meta_path that finds nothing itself."""

    def __init__(self, started_ns: int, timing: bool = True) -> None:
        self.started_ns = started_ns
        self._timing = timing  # else only modules that are waited for are looked at
        self.noted: list[tuple[str, int, int]] = []  # name, begun, elapsed
        self.note: Callable[[str, int, int], Any] = lambda *slow: self.noted.append(slow)
        self._callbacks: dict[str, list[Callable[[ModuleType], Any]]] = {}
        self.before_import: Callable[[str], Any] = lambda name: None
        """Called as the import of a module begins that is waited for."""
        self._looking: set[str] = set()
        self._depth = 0  # of modules of libraries
        self._noted_ns = 0

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def when_imported(self, name: str, callback: Callable[[ModuleType], Any]) -> None:
        """Call back with the module once it is imported, at once if it already is."""
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            callback(module)
        else:
            self._callbacks.setdefault(name, []).append(callback)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the others find, timed where it is an outermost import or one waited for. Of the
        program's own modules what they import of libraries is timed apart."""
        unasked = (self._depth or not self._timing) and name not in self._callbacks
        if name in self._looking or unasked:
            return None
        self._looking.add(name)
        try:
            spec = self._found_by_others(name, path, target)
        except (ImportError, ValueError):
            return None
        finally:
            self._looking.discard(name)
        if spec is not None and hasattr(spec.loader, "__dict__"):
            self._time(name, spec.loader, is_user_file(spec.origin or "<frozen"))
        return spec

    def _found_by_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        """What the finders behind this one find. The program's own before it have been asked, and
        those behind Python's will be: each only once, but for modules that are waited for."""
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        for finder in others:
            spec = finder.find_spec(name, path, target)
            if spec is not None or (finder is PathFinder and name not in self._callbacks):
                return spec
        return None

    def _time(self, name: str, loader: Any, own: bool) -> None:
        original = getattr(loader, "exec_module", None)
        if original is None or isinstance(loader, type) or "exec_module" in vars(loader):
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            if name in self._callbacks:
                self.before_import(name)
            begun, noted = monotonic_ns(), self._noted_ns
            self._depth += not own
            try:
                original(module)
            finally:
                self._depth -= not own
                elapsed = monotonic_ns() - begun - (self._noted_ns - noted)
                if not self._depth and elapsed > _WORTH_NOTING_NS:
                    self._noted_ns += elapsed
                    self.note(name, begun, elapsed)
            for callback in self._callbacks.pop(name, ()):
                callback(module)
            if not (self._timing or self._callbacks):
                self.remove()

        loader.exec_module = exec_module


def import_watch() -> ImportWatch:
    """What waits for modules in this process; a new one where nothing does."""
    found = next((one for one in sys.meta_path if isinstance(one, ImportWatch)), None)
    if found is None:
        found = ImportWatch(0, timing=False)
        found.install()
    return found
