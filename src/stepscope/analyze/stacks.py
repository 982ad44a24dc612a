"""Read py-spy's raw text: one line per distinct stack, outermost frame first, then its count.

Nothing in it is escaped, so thread names and paths that hold `;` or parentheses are told apart by
the shape of what follows them.
"""

import re
from typing import NamedTuple

from stepscope.record.frames import Frame

_THREAD = re.compile(r"thread \((?P<tid>0x[0-9a-fA-F]+|\d+)\)(?:: (?P<rest>.*)|;(?P<unnamed>.*))$")
_FRAME = re.compile(
    r"(?P<function>[^;]*?) \((?:(?P<native>[^;():]*)|(?P<file>.*?):(?P<line>\d+))\)(?:;|$)"
)
_FRAME_AHEAD = re.compile(r"[^;]* \(")


class Stack(NamedTuple):
    """Samples that met the same stack of one thread; frames are innermost first."""

    tid: int  # 0 when the recording does not tell threads apart
    thread: str
    frames: tuple[Frame, ...]  # Python's only
    samples: int


def read_stacks(text: str) -> list[Stack]:
    """The stacks of a recording; lines that are torn or have no Python frame are passed over."""
    stacks = []
    for row in text.splitlines():
        body, _, count = row.rpartition(" ")
        if not count.isdecimal():
            continue
        tid, thread, rest = _thread(body)
        frames = _frames(rest)
        if frames:
            stacks.append(Stack(tid, thread, frames, int(count)))
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


def _frames(text: str) -> tuple[Frame, ...]:
    frames = [
        Frame(match["function"], match["file"], int(match["line"]))
        for match in _FRAME.finditer(text)
        if match["native"] is None
    ]
    return tuple(reversed(frames))
