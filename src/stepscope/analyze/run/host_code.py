"""Where the program's main thread spends its time, from sampled stacks: py-spy's of a whole run,
and those that the probe takes of a few steps whose time no phase explains.

A sampler sees stacks, not calls, so how often a function was called is not known and not shown.
py-spy's raw text is one line per distinct stack, outermost frame first, then its count; nothing
in it is escaped, so thread names and paths that hold `;` or parentheses are told apart by the
shape of what follows them.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from stepscope.record.facts import HostSamplesFact, HostStack
from stepscope.record.frames import Frame, is_observer, is_program, is_standard
from stepscope.record.kinds import SampleWork

_THREAD = re.compile(r"thread \((?P<tid>0x[0-9a-fA-F]+|\d+)\)(?:: (?P<rest>.*)|;(?P<unnamed>.*))$")
_FRAME = re.compile(
    r"(?P<function>[^;]*?) \((?:(?P<native>[^;():]*)|(?P<file>.*?):(?P<line>\d+))\)(?:;|$)"
)
_FRAME_AHEAD = re.compile(r"[^;]* \(")


class _Stack(NamedTuple):
    """Samples that met the same stack of one thread; frames are innermost first."""

    tid: int  # 0 when the recording does not tell threads apart
    thread: str
    frames: tuple[Frame, ...]  # Python's only
    samples: int


def read_stacks(text: str) -> list[_Stack]:
    """The stacks of a recording; torn lines and lines without a Python frame are skipped."""
    stacks = []
    for row in text.splitlines():
        body, _, count = row.rpartition(" ")
        if not count.isdecimal():
            continue
        tid, thread, rest = _thread(body)
        frames = [
            Frame(match["function"], match["file"], int(match["line"]))
            for match in _FRAME.finditer(rest)
            if match["native"] is None
        ]
        if frames:
            stacks.append(_Stack(tid, thread, tuple(reversed(frames)), int(count)))
    return stacks


def _thread(body: str) -> tuple[int, str, str]:
    match = _THREAD.match(body)
    if match is None:
        return 0, "", body
    tid = int(match["tid"], 0)
    if match["unnamed"] is not None:
        return tid, "", match["unnamed"]
    rest = match["rest"]
    for semicolon in re.finditer(";", rest):
        if _FRAME_AHEAD.match(rest, semicolon.end()):
            return tid, rest[: semicolon.start()], rest[semicolon.end() :]
    return tid, rest, ""


# Functions of the standard library in which a thread waits for another thread or process.
_WAITS = re.compile(
    r"[/\\](?:threading\.py:(?:.*\.)?(?:wait|join|acquire|_wait_for_tstate_lock|_shutdown)"
    r"|queue\.py:(?:.*\.)?get"
    r"|selectors\.py:(?:.*\.)?select"
    r"|multiprocessing[/\\]connection\.py:(?:.*\.)?(?:wait|_recv|_recv_bytes|_poll|poll)"
    r"|multiprocessing[/\\](?:popen_fork\.py:(?:.*\.)?poll|synchronize\.py:(?:.*\.)?(?:wait|__enter__))"
    r"|subprocess\.py:(?:.*\.)?(?:_try_wait|_wait|wait|_communicate)"
    r"|concurrent[/\\]futures[/\\]thread\.py:_worker"
    r"|socket\.py:(?:.*\.)?(?:accept|readinto))$"
)


@dataclass(frozen=True)
class FunctionTime:
    """A function; `line` is the one most often seen in it. Own time leaves waiting out."""

    name: str
    file: str
    line: int
    samples: int
    own_s: float
    cumulative_s: float


@dataclass(frozen=True)
class LineTime:
    """A source line. Own time leaves waiting out; recursion counts once in the cumulative."""

    file: str
    line: int
    function: str
    own_s: float
    cumulative_s: float


@dataclass(frozen=True)
class ThreadTime:
    """One Python thread; `hottest` is None when it was never seen at work."""

    name: str
    main: bool
    busy_s: float
    waiting_s: float
    hottest: LineTime | None


@dataclass(frozen=True)
class HostCode:
    """The main thread's sampled time, by function and by line, most own time first.

    `waiting_s` was spent blocked on other threads or processes; `observer_share` of the sampled
    time went to stepscope itself, whose frames are shown nowhere.
    """

    sampled_s: float
    waiting_s: float
    observer_share: float
    functions: list[FunctionTime]
    lines: list[LineTime]
    threads: list[ThreadTime]


@dataclass(slots=True)
class _Thread:
    """Counts of one thread."""

    name: str
    samples: int = 0
    waiting: int = 0
    observer: int = 0
    own: Counter[Frame] = field(default_factory=Counter)
    cumulative: Counter[Frame] = field(default_factory=Counter)
    functions: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, frames: tuple[Frame, ...], samples: int) -> None:
        self.samples += samples
        top = frames[0]
        if is_standard(top.file) and _WAITS.search(f"{top.file}:{top.function}"):
            self.waiting += samples
        elif _is_observers(frames):
            self.observer += samples
            return
        else:
            self.own[next(f for f in frames if not is_observer(f.file))] += samples
        shown = dict.fromkeys(frame for frame in frames if not is_observer(frame.file))
        for frame in shown:  # in order of the stack, so that ties always come out alike
            self.cumulative[frame] += samples
        for function in dict.fromkeys((frame.function, frame.file) for frame in shown):
            self.functions[function] += samples


def host_code(text: str, rate_hz: float = 100, pid: int | None = None) -> HostCode:
    """Reduce py-spy's raw text. `pid` tells the main thread where it was renamed."""
    threads: dict[int | None, _Thread] = {}
    for stack in read_stacks(text):
        threads.setdefault(stack.tid, _Thread(stack.thread)).add(stack.frames, stack.samples)
    if not threads:
        return HostCode(0.0, 0.0, 0.0, [], [], [])
    largest = sorted(threads.values(), key=lambda thread: -thread.samples)
    named = [thread for thread in largest if thread.name == "MainThread"]
    main = threads.get(pid) or (named or largest)[0]
    return HostCode(
        sampled_s=main.samples / rate_hz,
        waiting_s=main.waiting / rate_hz,
        observer_share=main.observer / main.samples,
        functions=_functions(main, rate_hz),
        lines=_lines(main, rate_hz),
        threads=[
            ThreadTime(
                name=thread.name,
                main=thread is main,
                busy_s=sum(thread.own.values()) / rate_hz,
                waiting_s=thread.waiting / rate_hz,
                hottest=next((line for line in _lines(thread, rate_hz) if line.own_s > 0), None),
            )
            for thread in sorted(largest, key=lambda thread: thread is not main)
            if thread.own or thread.waiting
        ],
    )


def _is_observers(frames: tuple[Frame, ...]) -> bool:
    """Whether the observer was at work: in its own code, or in Python's on its behalf.

    Torch or the program below a frame of the observer is the program's work, passed through.
    """
    for frame in frames:
        if is_observer(frame.file):
            return True
        if is_program(frame.file) or not is_standard(frame.file):
            return False
    return False


def _functions(thread: _Thread, rate_hz: float) -> list[FunctionTime]:
    own: Counter[tuple[str, str]] = Counter()
    for frame, samples in thread.own.items():
        own[frame.function, frame.file] += samples
    line = {}
    for frame, _ in sorted(thread.cumulative.items(), key=lambda item: item[1]):
        line[frame.function, frame.file] = frame.line
    rows = [
        FunctionTime(*key, line[key], samples, own[key] / rate_hz, samples / rate_hz)
        for key, samples in thread.functions.items()
    ]
    return sorted(rows, key=lambda row: (-row.own_s, -row.cumulative_s, row.file, row.name))


def _lines(thread: _Thread, rate_hz: float) -> list[LineTime]:
    rows = [
        LineTime(frame.file, frame.line, frame.function, thread.own[frame] / rate_hz, n / rate_hz)
        for frame, n in thread.cumulative.items()
    ]
    return sorted(rows, key=lambda row: (-row.own_s, -row.cumulative_s, row.file, row.line))


_PART_OF_CALLER = ("<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>", "<lambda>")
_MOSTLY = 0.8  # of a function's time: one it calls stands for it
_NEXT_LINES = 3  # lines of the loop at most that far apart are one piece of code
_MOST_CODE = 5
_OF_PHASES = ("torch.optim.", "torch.autograd.", "torch._tensor.Tensor.backward")


@dataclass(frozen=True)
class OtherCode:
    """Code of the loop in no phase: a function it calls, or some lines of its own.

    `file` and `line`: the line of it that takes most time. `share` is of the time in no phase.
    """

    function: str | None  # None: the loop's own lines, `line` the costliest
    file: str
    line: int
    first_line: int  # of those seen to run
    last_line: int
    line_share: float  # of the time in no phase, in that line
    share: float
    called_at: int | None  # the loop's line that leads to the function
    calls: str  # the library function in which most of it was seen; "": none
    works: dict[SampleWork, float]  # the share of its time that does this to make samples


@dataclass(frozen=True)
class OtherTime:
    """What takes the time in no phase, the costliest first, as sampled in a few steps."""

    steps: int
    samples: int
    share: float  # of the sampled time that was in no phase
    around: float  # of that, in torch's own functions around backward and the optimizer's step
    code: list[OtherCode]


_Function = tuple[str, str]  # file and name


class _Seen(NamedTuple):
    """What a stack has of a piece of code: its frames, outermost first, and the loop's line that
    calls it; None where that is not known."""

    frames: list[Frame]
    called_at: int | None
    stack: HostStack


def other_time(fact: HostSamplesFact | None, loop: Iterable[_Function]) -> OtherTime | None:
    """What a run's samples tell; None without any. `loop`: functions known to hold the loop, as
    phases begin in them; so do those on the stacks of samples in a phase."""
    if fact is None:
        return None
    told = [(_frames(one), one) for one in fact.stacks]
    loops = {*loop}
    for frames, one in told:
        if one.phase not in ("other", "observer"):
            loops.update((frame.file, frame.function) for frame in frames)
    functions: defaultdict[_Function, list[_Seen]] = defaultdict(list)
    lines: defaultdict[Frame, list[_Seen]] = defaultdict(list)
    around = 0
    for frames, one in told:
        if one.phase == "other" and frames:
            inside = [(frame.file, frame.function) in loops for frame in frames]
            begins = inside.index(True) if True in inside else 0  # the loop, below what calls it
            depth = next((n for n, its in enumerate(inside) if n >= begins and not its), None)
            if depth is None and one.calls.startswith(_OF_PHASES):
                around += one.ns
            elif depth is None:
                lines[frames[-1]].append(_Seen(frames[-1:], None, one))
            else:
                key = frames[depth].file, frames[depth].function
                caller = frames[depth - 1].line if depth else None
                functions[key].append(_Seen(frames[depth:], caller, one))
    in_other = sum(one.ns for _, one in told if one.phase == "other")
    whole = sum(one.ns for _, one in told)
    code = [_code(some, in_other, called=True) for some in functions.values()]
    code += [_code(some, in_other, called=False) for some in _pieces(lines)]
    code.sort(key=lambda one: -one.share)
    share, left_out = in_other / max(whole, 1), around / max(in_other, 1)
    return OtherTime(fact.steps, fact.samples, share, left_out, code[:_MOST_CODE])


def _frames(stack: HostStack) -> list[Frame]:
    """The program's, outermost first; comprehensions are part of what they stand in."""
    found = [Frame(str(function), str(file), int(line)) for file, line, function in stack.frames]
    found = [frame for frame in found if is_program(frame.file)]
    return [f for n, f in enumerate(found) if not n or f.function not in _PART_OF_CALLER]


def _pieces(lines: Mapping[Frame, list[_Seen]]) -> list[list[_Seen]]:
    """Neighbouring lines of the loop as one piece of code."""
    found: list[list[_Seen]] = []
    latest: Frame | None = None
    for line in sorted(lines):
        if latest and latest[:2] == line[:2] and line.line - latest.line <= _NEXT_LINES:
            found[-1] = [*found[-1], *lines[line]]
        else:
            found.append(lines[line])
        latest = line
    return found


def _code(some: list[_Seen], in_other: int, called: bool) -> OtherCode:
    """A piece of code by its stacks, all of which begin in the same function."""
    whole = sum(one.stack.ns for one in some)
    inside = [(one.frames[0], one) for one in some]
    depth = 1
    while deeper := [(one.frames[depth], one) for one in some if len(one.frames) > depth]:
        callee, ns = _most((frame[:2], one.stack.ns) for frame, one in deeper)
        if ns < _MOSTLY * whole:
            break
        inside = [(frame, one) for frame, one in deeper if frame[:2] == callee]
        depth += 1
    line, line_ns = _most((frame.line, one.stack.ns) for frame, one in inside)
    works: Counter[SampleWork] = Counter()
    for one in some:
        if one.stack.work is not None:
            works[one.stack.work] += one.stack.ns
    seen = [frame.line for frame, _ in inside]
    callers = ((one.called_at, one.stack.ns) for one in some)
    function, file = inside[0][0][:2]
    return OtherCode(
        function=function if called else None,
        file=file,
        line=line,
        first_line=min(seen),
        last_line=max(seen),
        line_share=line_ns / max(in_other, 1),
        share=whole / max(in_other, 1),
        called_at=_most(callers)[0],
        calls=_most((one.stack.calls, one.stack.ns) for one in some)[0],
        works={work: ns / max(whole, 1) for work, ns in works.items()},
    )


_T = TypeVar("_T")


def _most(amounts: Iterable[tuple[_T, int]]) -> tuple[_T, int]:
    """The key with the largest sum, and that."""
    sums: defaultdict[_T, int] = defaultdict(int)
    for key, amount in amounts:
        sums[key] += amount
    return max(sums.items(), key=lambda item: item[1])
