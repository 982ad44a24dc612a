"""Watches a trial's writes through Python's audit events, before they happen. Inside the scratch
copy links are replaced by copies first; a write elsewhere is noted with its source line and, if
asked, ends the process: an exception could be caught.
"""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from errno import ENOENT
from functools import partial
from pathlib import Path
from threading import local
from types import FrameType
from typing import Any, TypeVar

from stepscope.probe.guard.native import silence_trackers, watch_native_writers
from stepscope.probe.guard.walls import enter_wall
from stepscope.probe.guard.zone import WriteZone, import_from_scratch, real_path, resolve_in_scratch
from stepscope.probe.patches import ImportWatch
from stepscope.record.facts import WriteAction, WroteOutsideFact
from stepscope.record.probe_options import Wall, WriteGuard
from stepscope.store.json_lines import FactLog

_Result = TypeVar("_Result")
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True, slots=True)
class _PathArgument:
    """A path among an event's arguments."""

    action: WriteAction
    place: int = 0
    relative_to: int | None = None  # the argument with the descriptor of the folder it starts from
    follow: bool = True
    """Whether a link is followed. Folders that are removed must be real, so theirs are, too."""
    needs: str = ""  # "there", "absent": nothing happens otherwise
    looked_up_late: bool = False
    """Whether the kernel first says that a file system is read-only, then that nothing is there."""


_WRITE = _PathArgument(WriteAction.WRITE)


def _change(relative_to: int | None = None) -> tuple[_PathArgument, ...]:
    return (_PathArgument(WriteAction.CHANGE, 0, relative_to, needs="there"),)


_WRITE_EVENTS: dict[str, tuple[_PathArgument, ...]] = {
    "os.chmod": _change(2),
    "os.chown": _change(3),
    "os.utime": _change(3),
    "os.setxattr": _change(),
    "os.removexattr": _change(),
    "os.truncate": (_PathArgument(WriteAction.WRITE, needs="there"),),
    "os.mkdir": (_PathArgument(WriteAction.CREATE, 0, 2, follow=False, needs="absent"),),
    "os.remove": (_PathArgument(WriteAction.DELETE, 0, 1, False, "there", looked_up_late=True),),
    "os.rmdir": (_PathArgument(WriteAction.DELETE, 0, 1, True, "there", looked_up_late=True),),
    "shutil.rmtree": (_PathArgument(WriteAction.DELETE, 0, 1, needs="there"),),
    "os.rename": (
        _PathArgument(WriteAction.RENAME, 0, 2, False, "there", looked_up_late=True),
        _PathArgument(WriteAction.WRITE, 1, 3, follow=False),
    ),
    "os.link": (
        _PathArgument(WriteAction.CHANGE, 0, 2, needs="there"),
        _PathArgument(WriteAction.CREATE, 1, 3, follow=False),
    ),
    "os.symlink": (_PathArgument(WriteAction.CREATE, 1, 2, follow=False),),
}


_SMALL_BYTES = 256 << 20  # A linked database up to here is copied when it is opened


def _sqlite_path(given: Any) -> str | None:
    """The file behind an argument of sqlite3.connect; None where it is not written."""
    path = os.fsdecode(given)
    if path.startswith("file:"):
        from urllib.parse import parse_qs, unquote, urlsplit

        parts = urlsplit(path)
        asked = parse_qs(parts.query)
        if asked.get("mode", [""])[0] in ("ro", "memory") or "immutable" in asked:
            return None
        path = unquote(parts.path)
    return None if path in ("", ":memory:") else path


WROTE_OUTSIDE = 97  # the exit code of a program stopped for it
_MOST_NOTED = 1_000


def install_guard(guard: WriteGuard, folder: str, watch: ImportWatch) -> None:
    """Guard this process and its children from here on; `folder` is the run's. Raises OSError
    where the wall cannot be put up."""
    allowed = (*guard.allowed, folder)
    zone = WriteZone(guard.scratch, guard.original, allowed, guard.stand_ins)
    import_from_scratch(zone)
    resolve_in_scratch(zone)
    enter_wall(guard.wall, zone.folders)
    watcher = _WriteWatcher(zone, Path(folder), guard.refuse, guard.wall)
    os.register_at_fork(after_in_child=zone.forked)
    watch_native_writers(watch, watcher.writes)
    silence_trackers(watch, watcher.sends)
    handlers: dict[str, Callable[[tuple[Any, ...]], None]] = {
        event: partial(watcher.event, targets) for event, targets in _WRITE_EVENTS.items()
    }
    handlers["open"] = watcher.opens
    handlers["os.chdir"] = watcher.enters
    handlers["os.walk"] = handlers["os.fwalk"] = watcher.walks
    handlers["pathlib.Path.rglob"] = partial(watcher.globs, deep=True)
    handlers["pathlib.Path.glob"] = watcher.globs
    handlers["sqlite3.connect"] = watcher.connects

    def hook(event: str, arguments: tuple[Any, ...], find: Any = handlers.get) -> None:
        handler = find(event)
        if handler is not None:
            handler(arguments)

    sys.addaudithook(hook)


class _WriteWatcher:
    """What is done about each kind of event. Its own faults never reach the program."""

    def __init__(self, zone: WriteZone, folder: Path, refuse: bool, wall: Wall) -> None:
        self._zone = zone
        self._folder = folder
        self._refuse = refuse
        self._wall = wall
        self._noted: set[str] = set()
        self._pid = os.getpid()
        self._own = local()  # has `busy` set in a thread while it is the guard itself that writes

    def opens(self, arguments: tuple[Any, ...]) -> None:
        """A file is opened, by whatever function of Python's."""
        path, _, flags = arguments
        if isinstance(flags, int) and flags & _WRITE_FLAGS and not isinstance(path, int):
            fresh = flags & os.O_CREAT and flags & os.O_EXCL
            follow = not fresh and not flags & os.O_NOFOLLOW
            self._quietly(self._settle, _WRITE, path, follow, not flags & os.O_TRUNC)

    def event(self, targets: tuple[_PathArgument, ...], arguments: tuple[Any, ...]) -> None:
        for target in targets:
            if (missing := self._quietly(self._change, target, arguments)) is not None:
                raise missing

    def writes(self, path: Any, keep: bool) -> None:
        self._quietly(self._settle, _WRITE, path, True, keep)

    def sends(self, where: str) -> None:
        self._quietly(self._report, WriteAction.UPLOAD, where)

    def enters(self, arguments: tuple[Any, ...]) -> None:
        """Relative paths lead into the scratch copy after this too."""
        if not isinstance(arguments[0], int):
            self._quietly(lambda: self._zone.settle(os.fsdecode(arguments[0])))

    def walks(self, arguments: tuple[Any, ...]) -> None:
        """os.walk(top, topdown, onerror, followlinks), os.fwalk alike."""
        if not arguments[3]:
            self._quietly(lambda: self._zone.unfold(os.fsdecode(arguments[0])))

    def globs(self, arguments: tuple[Any, ...], deep: bool = False) -> None:
        """Path.glob(pattern), which may walk through folders, or rglob, which does."""
        if deep or "**" in str(arguments[1]):
            self._quietly(lambda: self._zone.unfold(os.fspath(arguments[0])))

    def connects(self, arguments: tuple[Any, ...]) -> None:
        self._quietly(self._connect, arguments[0])

    def _quietly(self, function: Callable[..., _Result], *arguments: Any) -> _Result | None:
        if getattr(self._own, "busy", False):
            return None
        self._own.busy = True
        try:
            return function(*arguments)
        except Exception:
            return None  # a path that cannot be followed fails in the program as without us
        finally:
            self._own.busy = False

    def _connect(self, given: Any) -> None:
        """It may be opened only to be read: the user's, if large or elsewhere, is left to the
        kernel's guard."""
        path, zone = _sqlite_path(given), self._zone
        if path is None:
            return
        sealed = self._wall is not Wall.NONE
        if sealed and os.path.exists(path) and not zone.contains(real_path(path)):
            large = os.stat(path).st_size > _SMALL_BYTES
            if large or not zone.contains(os.path.abspath(path)):
                return
        self._settle(_WRITE, path, follow=True, keep=True)

    def _change(
        self, target: _PathArgument, arguments: tuple[Any, ...]
    ) -> FileNotFoundError | None:
        """The error that the program is to get; None: what the kernel says."""
        path = arguments[target.place]
        if isinstance(path, int):
            return None  # of a file opened before
        folder = None if target.relative_to is None else arguments[target.relative_to]
        if isinstance(folder, int) and folder >= 0:
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
        late = target.looked_up_late and self._wall is Wall.NAMESPACES
        if late and not os.path.lexists(path):
            return FileNotFoundError(ENOENT, os.strerror(ENOENT), arguments[target.place])
        self._settle(target, path, target.follow, keep=True)
        return None

    def _settle(self, target: _PathArgument, given: Any, follow: bool, keep: bool) -> None:
        path = os.fsdecode(given)
        if "__pycache__" in path:
            return  # Python's own, and it does without where it may not write
        if target.needs == "there" and not os.path.lexists(path):
            return  # will fail without us
        if target.needs == "absent" and os.path.isdir(path):
            return
        outside = self._zone.settle(path, follow, keep)
        if outside is not None:
            self._report(target.action, self._zone.users(outside))

    def _report(self, action: WriteAction, path: str) -> None:
        if path in self._noted or len(self._noted) > _MOST_NOTED:
            return
        self._noted.add(path)
        from stepscope.probe.sites import is_user_code

        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not is_user_code(frame.f_code):
            frame = frame.f_back
        file, line = "", 0
        if frame is not None:  # the nearest line of the user's code, in the user's own file
            file = self._zone.users(os.path.join(self._zone.scratch, frame.f_code.co_filename))
            line = frame.f_lineno
        facts = FactLog(self._folder / "facts.jsonl")
        facts.write(WroteOutsideFact(path=path, file=file, line=line, action=action))
        facts.close()
        if not self._refuse:
            return
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        if os.getpid() != self._pid and os.getppid() == self._pid:
            os.kill(self._pid, signal.SIGKILL)  # a loader worker: the program is to end too
        os._exit(WROTE_OUTSIDE)
