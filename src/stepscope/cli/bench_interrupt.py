"""A grid that is told to stop: what is finished stays, and the way on is said."""

import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

_STOPPED = 130
_HEARD = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible(results: Any, arguments: Sequence[str]) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP end the grid alike: exit code 130 after one line.

    What was ignored before, as under nohup, stays ignored.
    """
    heard = [number for number in _HEARD if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _stop) for number in heard}
    try:
        yield
    except KeyboardInterrupt:
        print(f"\n{_way_on(results, arguments)}", file=sys.stderr)
        sys.exit(_STOPPED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _way_on(results: Any, arguments: Sequence[str]) -> str:
    from stepscope.report.text import plural, safe

    folder, here = results.folder, Path.cwd()
    shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
    words = shlex.join(["stepscope", "bench", *_again(arguments, str(shown))])
    count = len(results.records)
    done = plural(count, "measurement") if count else "what was finished is"
    return f"stepscope: stopped; {done} kept, go on with: {safe(words)}"


def _again(arguments: Sequence[str], folder: str) -> list[str]:
    """The same command line, into the same folder and without replacing it."""
    kept: list[str] = []
    for place, word in enumerate(arguments):
        value_of_out = place and arguments[place - 1] == "--out"
        if word not in ("--force", "--out") and not word.startswith("--out=") and not value_of_out:
            kept.append(word)
    return [*kept, "--out", folder]
