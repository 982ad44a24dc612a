"""Source lines: which line of the user's code makes something happen, how often, for how long."""

import os
import signal
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from stepscope.record.facts import SiteFact, SiteKind
from stepscope.record.kinds import HostWait
from stepscope.record.row_log import FIRST_SITE_COLUMNS, SITE_COLUMNS
from stepscope.store.json_lines import FactLog
from stepscope.store.table import Table

_OURS = str(Path(__file__).parent.parent)
_STANDARD = os.path.dirname(os.__file__)
_LIBRARIES = (_STANDARD, "<frozen", "<string>", "<__array_function__", _OURS)
_USED = frozenset(("stepscope", "torch", "numpy", "msgspec"))  # they raise in calls of ours
_ALWAYS_SEEN = (SiteKind.EPOCH_START, SiteKind.SAVE)
_WIDTH, _SAMPLED = len(SITE_COLUMNS), len(FIRST_SITE_COLUMNS)
_BUNDLED = str(Path(_OURS) / "workloads")


def is_user_code(code: CodeType) -> bool:
    """Whether a code object is the user's own: not of a library, not of stepscope."""
    return is_user_file(code.co_filename)


def is_user_file(name: str) -> bool:
    """The same of a file."""
    if name.startswith(_BUNDLED):
        return True
    return not name.startswith(_LIBRARIES) and "-packages" not in name


def is_thrown_by_program(problem: BaseException) -> bool:
    """Whether an exception that came up in our code is the program's: a signal handler of its own
    raised it, or another thread did, and it is of a kind that only the program or its libraries
    raise."""
    codes, trace = set(), problem.__traceback__
    while trace is not None:
        codes.add(trace.tb_frame.f_code)
        trace = trace.tb_next
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    if any(_code_of(handler) in codes for handler in handlers if callable(handler)):
        return True
    package = type(problem).__module__.partition(".")[0]
    ours = package in _USED or package in sys.stdlib_module_names
    return not ours and not any(map(is_user_code, codes))


def _code_of(function: Any) -> CodeType | None:
    """What runs when it is called."""
    function = getattr(function, "func", function)  # of a partial
    method = vars(type(function)).get("__call__")  # of an object that can be called
    return getattr(function, "__code__", getattr(method, "__code__", None))


class WaitSite:
    """What a line that waits for the device does. One instance per pair: compared by identity."""

    __slots__ = ("kind", "wait")

    def __init__(self, kind: SiteKind, wait: HostWait) -> None:
        self.kind = kind
        self.wait = wait


SiteKey = SiteKind | WaitSite


class Sites:
    """Counters per source line and what it does."""

    def __init__(self, folder: Path, facts: FactLog) -> None:
        self._facts = facts
        self._table = Table(folder / "sites.npy", SITE_COLUMNS, chunk_rows=1024)
        self._cells = self._table.cells
        self._ids: dict[tuple[SiteKey, int, int], int] = {}
        self._lines: dict[tuple[SiteKey, str, int], int] = {}
        self._always: set[int] = set()  # those seen whether or not a step is clocked
        self.sampling = False
        """Whether what is seen now stands for steps that are not clocked."""
        self._users: dict[int, tuple[CodeType, bool]] = {}  # by id; the code is kept alive

    def locate(self, what: SiteKey, depth: int = 2) -> int:
        """The site of the nearest line of the user's, skipping `depth` frames."""
        frame: FrameType | None = sys._getframe(depth)
        called = None
        users = self._users
        while frame is not None:
            code = frame.f_code
            known = users.get(id(code))
            if known is None:
                known = users[id(code)] = (code, is_user_code(code))
            if known[1]:
                break
            called, frame = frame, frame.f_back
        frame = frame or called
        if frame is None:
            return self._new((what, 0, 0), None, None)
        key = (what, id(frame.f_code), frame.f_lasti)
        site = self._ids.get(key)
        return self._new(key, frame, called) if site is None else site

    def add(self, site: int, elapsed_ns: int, nbytes: int = 0) -> None:
        cells = self._cells
        at = site * _WIDTH
        if self.sampling and site not in self._always:
            at += _SAMPLED
        cells[at] += 1
        cells[at + 1] += elapsed_ns
        if nbytes:
            cells[at + 2] += nbytes

    def lines(self, kind: SiteKind, wait: HostWait) -> tuple[tuple[str, int], ...]:
        """Files and numbers of the lines that wait so."""
        keys = ((what, (file, line)) for what, file, line in self._lines)
        waits = ((what, at) for what, at in keys if isinstance(what, WaitSite))
        return tuple(at for what, at in waits if what.kind is kind and what.wait is wait)

    def close(self) -> None:
        self._cells = memoryview(b"").cast("d")
        self._table.close(len(self._lines))

    def _new(
        self, key: tuple[SiteKey, int, int], frame: FrameType | None, called: FrameType | None
    ) -> int:
        """`called` is what the user's line calls, on the way to what happens."""
        file = frame.f_code.co_filename if frame else ""
        line = frame.f_lineno if frame else 0
        site = self._lines.get((key[0], file, line))
        if site is None:
            site = len(self._lines)
            if site >= self._table.rows:
                self._cells = self._table.grow()
            self._lines[(key[0], file, line)] = site
            what = key[0]
            if what in _ALWAYS_SEEN:
                self._always.add(site)
            kind, wait = (what.kind, what.wait) if isinstance(what, WaitSite) else (what, None)
            function = frame.f_code.co_name if frame else ""
            module = str(called.f_globals.get("__name__") or "") if called else ""
            through: str | None = module.partition(".")[0]
            if through in ("", "__main__", "torch", "stepscope"):  # torch is in between always
                through = None
            fact = SiteFact(
                id=site,
                kind=kind,
                wait=wait,
                file=file,
                line=line,
                function=function,
                through=through,
            )
            self._facts.write(fact)
        self._ids[key] = site
        return site
