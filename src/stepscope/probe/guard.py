"""A trial's program must not touch what is the user's: its writes are seen before they happen.

Installed before the program's first line. Inside the scratch copy links are replaced by copies
first; a write anywhere else is noted with its source line and, if so asked, ends the process: an
exception could be caught.
"""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import local
from typing import Any

from stepscope.probe import landlock
from stepscope.probe.guard_database import database_path, is_kept_apart
from stepscope.probe.guard_events import EVENTS, WRITING, Target
from stepscope.probe.guard_paths import resolve_in_scratch, take_from_scratch
from stepscope.probe.guard_trackers import quiet_trackers
from stepscope.probe.guard_writers import watch_writers
from stepscope.probe.guard_zone import Zone
from stepscope.probe.imports import ImportWatch
from stepscope.record.options import Guard
from stepscope.store.facts import Facts

WROTE_OUTSIDE = 97
"""The exit code of a program stopped for it."""
_MOST_NOTED = 1_000


def install(guard: Guard, folder: str, watch: ImportWatch) -> None:
    """Guard this process and its children from here on; `folder` is the run's."""
    zone = Zone(guard.scratch, guard.original, (*guard.allowed, folder))
    take_from_scratch(zone)
    resolve_in_scratch(zone)
    sealed = guard.refuse and landlock.restrict(zone.folders)
    watcher = _Watcher(zone, Path(folder), guard.refuse, sealed)
    os.register_at_fork(after_in_child=zone.forked)
    watch_writers(watch, watcher.writes)
    quiet_trackers(watch, watcher.sends)
    handlers: dict[str, Callable[[tuple[Any, ...]], None]] = {
        event: partial(watcher.event, targets) for event, targets in EVENTS.items()
    }
    handlers["open"] = watcher.opens
    handlers["os.chdir"] = watcher.enters
    handlers["os.walk"] = handlers["os.fwalk"] = watcher.walks
    handlers["pathlib.Path.rglob"] = watcher.walks_path
    handlers["pathlib.Path.glob"] = watcher.globs
    handlers["sqlite3.connect"] = watcher.connects

    def hook(event: str, arguments: tuple[Any, ...], find: Any = handlers.get) -> None:
        handler = find(event)
        if handler is not None:
            handler(arguments)

    sys.addaudithook(hook)


class _Watcher:
    """What is done about each kind of event. Its own faults never reach the program."""

    def __init__(self, zone: Zone, folder: Path, refuse: bool, sealed: bool) -> None:
        self._zone = zone
        self._folder = folder
        self._refuse = refuse
        self._sealed = sealed
        self._noted: set[str] = set()
        self._pid = os.getpid()
        self._own = local()
        """Has `busy` set in a thread while it is the guard itself that writes."""

    def opens(self, arguments: tuple[Any, ...]) -> None:
        """A file is opened, by whatever function of Python's."""
        path, _, flags = arguments
        if isinstance(flags, int) and flags & WRITING and not isinstance(path, int):
            fresh = flags & os.O_CREAT and flags & os.O_EXCL
            follow = not fresh and not flags & os.O_NOFOLLOW
            self._quietly(self._settle, Target("write"), path, follow, not flags & os.O_TRUNC)

    def event(self, targets: tuple[Target, ...], arguments: tuple[Any, ...]) -> None:
        """A path is changed otherwise."""
        for target in targets:
            self._quietly(self._change, target, arguments)

    def writes(self, path: Any, keep: bool) -> None:
        """A native writer is about to write this file."""
        self._quietly(self._settle, Target("write"), path, True, keep)

    def sends(self, where: str) -> None:
        """Something is about to be uploaded."""
        self._quietly(self._report, "send to", where)

    def enters(self, arguments: tuple[Any, ...]) -> None:
        """Relative paths are to lead into the scratch copy also after this."""
        if not isinstance(arguments[0], int):
            self._quietly(lambda: self._zone.settle(os.fsdecode(arguments[0])))

    def walks(self, arguments: tuple[Any, ...]) -> None:
        """os.walk(top, topdown, onerror, followlinks), os.fwalk alike."""
        if not arguments[3]:
            self._quietly(lambda: self._zone.unfold(os.fsdecode(arguments[0])))

    def globs(self, arguments: tuple[Any, ...]) -> None:
        """Path.glob(pattern), which may walk through folders."""
        if "**" in str(arguments[1]):
            self.walks_path(arguments)

    def walks_path(self, arguments: tuple[Any, ...]) -> None:
        """Path.rglob(pattern)."""
        self._quietly(lambda: self._zone.unfold(os.fspath(arguments[0])))

    def connects(self, arguments: tuple[Any, ...]) -> None:
        """A database may be opened only to be read: one outside is left to the kernel's guard."""
        self._quietly(self._connect, arguments[0])

    def _quietly(self, function: Callable[..., Any], *arguments: Any) -> None:
        if getattr(self._own, "busy", False):
            return
        self._own.busy = True
        try:
            function(*arguments)
        except Exception:
            pass  # a path that cannot be followed fails in the program as it would without us
        finally:
            self._own.busy = False

    def _connect(self, given: Any) -> None:
        path = database_path(given)
        if path is not None and not (self._sealed and is_kept_apart(path, self._zone)):
            self._settle(Target("write"), path, follow=True, keep=True)

    def _change(self, target: Target, arguments: tuple[Any, ...]) -> None:
        path = target.path(arguments)
        if path is not None:
            self._settle(target, path, target.follow, keep=True)

    def _settle(self, target: Target, given: Any, follow: bool, keep: bool) -> None:
        path = os.fsdecode(given)
        if "__pycache__" in path:
            return  # Python's own, and it does without where it may not write
        if target.needs == "there" and not os.path.lexists(path):
            return  # will fail by itself
        if target.needs == "absent" and os.path.isdir(path):
            return
        outside = self._zone.settle(path, follow, keep)
        if outside is not None:
            self._report(target.what, self._zone.users(outside))

    def _report(self, what: str, path: str) -> None:
        if path in self._noted or len(self._noted) > _MOST_NOTED:
            return
        self._noted.add(path)
        file, line = self._users_line()
        facts = Facts(self._folder / "facts.jsonl")
        facts.write("wrote_outside", path=path, file=file, line=line, what=what)
        if self._refuse:
            self._end()

    def _users_line(self) -> tuple[str, int]:
        """The nearest line of the user's code, in the user's own file; nothing where none is."""
        from stepscope.probe.sites import is_users

        frame = sys._getframe(1)
        while not is_users(frame.f_code):
            if frame.f_back is None:
                return "", 0
            frame = frame.f_back
        file = os.path.join(self._zone.scratch, frame.f_code.co_filename)
        return self._zone.users(file), frame.f_lineno

    def _end(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        if os.getpid() != self._pid and os.getppid() == self._pid:
            os.kill(self._pid, signal.SIGKILL)  # a loader worker: the program is to end too
        os._exit(WROTE_OUTSIDE)
