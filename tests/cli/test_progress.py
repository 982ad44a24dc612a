"""The progress display: lines in a pipe, nothing when quiet, a bar on a terminal."""

import io
import sys

import pytest

from stepscope.cli.progress import progress, time_left


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_one_clean_line_per_finished_part(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress() as shown:
        shown.update("trial 1", 0, 2)
        shown.line("trial 1: 12 ms \x1b[31m")
    assert stream.getvalue() == "trial 1: 12 ms ·[31m\n"


def test_quiet_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress(quiet=True) as shown:
        shown.update("trial 1")
        shown.line("trial 1: 12 ms")
    assert stream.getvalue() == ""


def test_a_terminal_shows_what_is_under_way_and_how_far(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with progress() as shown:
        shown.update("batch 32", 1, 4, time_left(200.0))
        shown.line("batch 16: 400 samples/s")
    text = stream.getvalue()
    assert "batch 16: 400 samples/s" in text
    assert "1/4  3 min 20 s left" in text
