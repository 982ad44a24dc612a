"""A process and its descendants: what they use now and have used in total, and how much others use
of the same cores."""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

_LONGEST: Final = 60
_LOOKS_S: Final = (1.0, 5.0, 60.0)
"""Time between looks at a descendant's shared memory, which take some ms: a worker writes to most
of its pages early on."""
_PRIVATE: Final = ("Private_Clean:", "Private_Dirty:", "Private_Hugetlb:")


def short_command(argv: Sequence[str]) -> str:
    """A command's name and, for Python, its script or module; the rest may hold secrets."""
    if not argv:
        return ""
    name = os.path.basename(argv[0])
    words = [name]
    if name.startswith("python"):
        for place, word in enumerate(argv[1:], start=1):
            if word == "-m" and place + 1 < len(argv):
                words += ["-m", argv[place + 1]]
            elif word == "-c":  # multiprocessing's own programs are named, others are not
                code = "".join(argv[place + 1 : place + 2])
                own = ("resource_tracker", "forkserver", "spawn")
                words += ["-c", *(name for name in own if name in code)]
            elif word.startswith("-"):
                continue
            else:
                words.append(os.path.basename(word))
            break
    return " ".join(words)[:_LONGEST]


@dataclass(slots=True)
class _Member:
    """A process of the tree, with its usage when last seen."""

    process: Any
    cpu_s: float = math.nan
    read_bytes: int = 0
    write_bytes: int = 0
    sightings: int = 0
    shared_bytes: int = 0
    looks: int = 0
    look_at_s: float = -math.inf


class ProcessTree:
    """`pid` and its descendants. A process that left its parent is followed until it ends; one that
    lives for less than the time between two calls of `refresh` is not seen."""

    def __init__(self, pid: int, commands: dict[int, str]) -> None:
        self._pid = pid
        self._commands = commands
        self._members: dict[int, _Member] = {}
        self._ended_read_bytes = 0
        self._ended_write_bytes = 0
        self._counts_io = False
        self._sampled_s = math.nan
        self._children: set[int] | None = None

    @property
    def pids(self) -> set[int]:
        return set(self._members)

    def has_changed(self) -> bool:
        """Whether the process's children have changed since the last call; cheap. False if the
        system does not say."""
        before, self._children = self._children, _children(self._pid)
        return self._children is not None and self._children != before

    def refresh(self) -> None:
        """Find new processes and drop those that ended."""
        import psutil

        for pid, member in list(self._members.items()):
            if not member.process.is_running():
                self._end(pid)
        try:
            main = psutil.Process(self._pid)
            found = [main, *main.children(recursive=True)]
        except psutil.Error:
            return
        for process in found:
            member = self._members.setdefault(process.pid, _Member(process))
            # Twice, a refresh apart: between fork and exec a process still has its parent's name.
            if process.pid != self._pid and member.sightings < 2:
                member.sightings += 1
                try:
                    command = short_command(process.cmdline())
                except Exception:  # ended, or not ours to read
                    continue
                if command:
                    self._commands[process.pid] = command

    def sample(self) -> dict[str, float]:
        """The process values of a machine sample; NaN if unknown. `rss_bytes` excludes what a
        descendant shares with files or other processes: libraries, shared tensors, and its parent's
        pages that a forked worker has not written to."""
        now_s = time.monotonic()
        used_s, rss_bytes = 0.0, 0
        for pid, member in list(self._members.items()):
            try:
                seconds, rss = self._read(member)
            except Exception:  # ended, or not ours to read
                self._end(pid)
                continue
            used_s += seconds
            rss_bytes += rss
        elapsed_s, self._sampled_s = now_s - self._sampled_s, now_s
        members = self._members.values()
        reads = self._ended_read_bytes + sum(member.read_bytes for member in members)
        writes = self._ended_write_bytes + sum(member.write_bytes for member in members)
        return {
            "cpu_percent": 100 * used_s / elapsed_s,
            "rss_bytes": float(rss_bytes),
            "processes": float(len(self._members)),
            "read_bytes": float(reads) if self._counts_io else math.nan,
            "write_bytes": float(writes) if self._counts_io else math.nan,
        }

    def _read(self, member: _Member) -> tuple[float, int]:
        """(seconds of CPU time since the last reading, resident bytes)."""
        import psutil

        process = member.process
        times = process.cpu_times()
        memory = process.memory_info()
        if not memory.rss:
            raise ProcessLookupError("a zombie holds no memory")
        shared = 0
        if process.pid != self._pid:  # as when last read
            now_s = time.monotonic()
            if now_s >= member.look_at_s:
                member.shared_bytes = _not_private(process.pid)
                member.look_at_s = now_s + _LOOKS_S[min(member.looks, len(_LOOKS_S) - 1)]
                member.looks += 1
            shared = max(member.shared_bytes, getattr(memory, "shared", 0))
        spent_s = times.user + times.system - member.cpu_s
        member.cpu_s = times.user + times.system
        try:
            counters = process.io_counters()
        except (psutil.AccessDenied, AttributeError, OSError):
            pass
        else:
            self._counts_io = True
            member.read_bytes = max(member.read_bytes, counters.read_bytes)
            member.write_bytes = max(member.write_bytes, counters.write_bytes)
        return 0.0 if math.isnan(spent_s) else spent_s, max(0, memory.rss - shared)

    def _end(self, pid: int) -> None:
        member = self._members.pop(pid)
        self._ended_read_bytes += member.read_bytes
        self._ended_write_bytes += member.write_bytes


def _not_private(pid: int) -> int:
    """Resident bytes that a process shares; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
            found = {words[0]: int(words[1]) for words in map(str.split, lines) if len(words) == 3}
        return 1024 * (found["Rss:"] - sum(found.get(name, 0) for name in _PRIVATE))
    except (OSError, ValueError, KeyError):
        return 0


def _children(pid: int) -> set[int] | None:
    """The pids of a process's children; None if the system does not say."""
    found: set[int] = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as numbers:
                found.update(map(int, numbers.read().split()))
    except OSError:
        return None
    return found


QUIET_SHARE: Final = 0.1  # of the cores: less is the machine's housekeeping
_LOOK_S: Final = 2.0
_EVERY_S: Final = 0.5  # reading the counters of a large machine takes a millisecond
_IDLE_FIELDS: Final = (3, 4)  # idle and waiting for disks, of a line of /proc/stat
_COUNTED_FIELDS: Final = 8  # guest time is included in user time


_JUMP: Final = 2  # times all cores: more is a jump of the counters, not load


class OtherLoad:
    """CPU time of neither the program nor this process, in percent of one core. Time stolen from a
    virtual machine counts: somebody else had it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._own_s = 0.0  # of the program since the last look
        self._seen_s: float | None = None
        self._busy_s = 0.0
        self._ours_s = 0.0

    def sample(self, program_percent: float, elapsed_s: float) -> float:
        """`program_percent` is the program's use during `elapsed_s`. NaN between two readings, if
        the system does not say, and where its counters jump, as a virtual machine's do at times."""
        if not math.isnan(program_percent) and not math.isnan(elapsed_s):
            self._own_s += program_percent / 100 * elapsed_s
        now_s = time.monotonic()
        if self._seen_s is not None and now_s - self._seen_s < _EVERY_S:
            return math.nan
        busy_s = busy_seconds(self._pid)
        if busy_s is None:
            return math.nan
        ours_s = sum(os.times()[:2])
        others_s = (busy_s - self._busy_s) - (ours_s - self._ours_s) - self._own_s
        share = math.nan if self._seen_s is None else others_s / (now_s - self._seen_s)
        self._seen_s, self._busy_s, self._ours_s, self._own_s = now_s, busy_s, ours_s, 0.0
        return 100 * share if abs(share) <= _JUMP * (os.cpu_count() or 1) else math.nan


def busy_seconds(pid: int) -> float | None:
    """How long the cores a process may use have been busy since boot; None if the system does not
    say."""
    try:
        cores = os.sched_getaffinity(pid)
        with open("/proc/stat", encoding="ascii") as lines:
            found = [line.split() for line in lines if line.startswith("cpu")]
    except (OSError, AttributeError, ValueError):
        return None
    ticks = 0
    for name, *counts in found:
        if name != "cpu" and int(name[3:]) in cores:
            busy = [int(count) for count in counts[:_COUNTED_FIELDS]]
            ticks += sum(busy) - sum(busy[place] for place in _IDLE_FIELDS)
    return ticks / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(limit_s: float, told: Callable[[float], None]) -> bool:
    """Wait until others leave nine tenths of the cores free, measured over two seconds at a time;
    False if they did not within `limit_s`. `told` receives how many cores were in use."""
    end_s, pid = time.monotonic() + limit_s, os.getpid()
    while True:
        begun_s, before_s = time.monotonic(), busy_seconds(pid)
        if before_s is None:
            return True
        time.sleep(_LOOK_S)
        cores = ((busy_seconds(pid) or before_s) - before_s) / (time.monotonic() - begun_s)
        if cores <= QUIET_SHARE * len(os.sched_getaffinity(pid)):
            return True
        told(cores)
        if time.monotonic() >= end_s:
            return False
