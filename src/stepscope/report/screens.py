"""The screen each kind of result has on a terminal, as text."""

import io
import re

from stepscope.report.bench import print_bench
from stepscope.report.subject import Subject
from stepscope.report.terminal import print_summary
from stepscope.report.trace import print_trace
from stepscope.report.tune import print_tune

_PRINT = {"run": print_summary, "trace": print_trace, "tune": print_tune, "bench": print_bench}

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def screen(subject: Subject) -> str:
    """What the command that made it prints; without colours, which notebooks ask for."""
    stream = io.StringIO()
    _PRINT[subject.kind](subject.document, stream)
    return _COLOURS.sub("", stream.getvalue()).strip("\n")
