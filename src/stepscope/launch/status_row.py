"""One row at the bottom of a terminal that the program writes to as well.

The rows above become the terminal's scrolling region, so the program's output, including bars and
cursor movements, stays undisturbed there. Our row is drawn in one write that restores the cursor.
While something else has the terminal (a prompt, a full-screen program, another job) it is left
alone.
"""

import os
import signal
import termios
from types import FrameType
from typing import IO, Any, Final

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_WHOLE: Final = f"{_SAVE}\x1b[r{_RESTORE}"  # setting a region moves the cursor
_MAKE_ROOM: Final = "\x1bD\x1b[A"  # if the cursor is in the last row, scroll by one
_FEWEST_ROWS: Final = 5
_COOKED: Final = termios.ICANON | termios.ECHO


class StatusRow:
    """The last row of a terminal, while it is ours. Must be closed."""

    def __init__(self, stream: IO[str]) -> None:
        self._fd = stream.fileno()
        self._size: os.terminal_size | None = None
        """The terminal's size while our row is drawn."""
        self._stopping: Any = None
        if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
            self._stopping = signal.signal(signal.SIGTSTP, self._stop)

    def show(self, text: str) -> None:
        """Draw the row if possible."""
        size = self._usable()
        if size is None:
            self.hide()
            return
        if size != self._size:
            self.hide()
            self._write(_WHOLE + _MAKE_ROOM)
            self._size = size
        region = f"\x1b[1;{size.lines - 1}r\x1b[{size.lines};1H"
        self._write(f"{_SAVE}{region}\x1b[2K{text[: size.columns - 1]}{_RESTORE}")

    def hide(self) -> None:
        """Give the row back to the program."""
        if self._size is not None:
            row = f"\x1b[{self._size.lines};1H\x1b[2K"
            self._write(f"{_SAVE}\x1b[r{row}{_RESTORE}")
            self._size = None

    def close(self) -> None:
        self.hide()
        if self._stopping is not None:
            signal.signal(signal.SIGTSTP, self._stopping)
            self._stopping = None

    def _usable(self) -> os.terminal_size | None:
        """The terminal's size; None while it is not ours, too small, or gone."""
        if os.environ.get("TERM", "dumb") == "dumb":
            return None
        try:
            size = os.get_terminal_size(self._fd)
            cooked = termios.tcgetattr(self._fd)[3] & _COOKED == _COOKED
        except (OSError, termios.error):
            return None
        try:
            foreground = os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:  # not a controlling terminal
            foreground = True
        return size if cooked and foreground and size.lines >= _FEWEST_ROWS else None

    def _write(self, text: str) -> None:
        """Write in one piece, so that no program output comes between."""
        try:
            os.write(self._fd, text.encode())
        except OSError:
            self._size = None

    def _stop(self, number: int, _: FrameType | None) -> None:
        """Ctrl-Z: give the shell its whole terminal back."""
        self.hide()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._stop)  # continues here after fg
