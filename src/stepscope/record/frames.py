"""Whose code a stack frame is: the program's, a library's, Python's or the observer's own.

Decided by path alone, so that it works for stacks recorded on another machine.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

_OBSERVER = re.compile(
    r"[/\\]stepscope[/\\](?:__init__\.py|__main__\.py|(?:api|magic|quick)\.py|"
    r"(?:record|stats|store|hardware|probe|trace|analyze|fixes|launch|diagnose|measure|tune|batch|"
    r"bench|results|compare|report|serve|cli)[/\\])"
)
_BUILT_IN_PROGRAM = re.compile(r"[/\\]stepscope[/\\]workloads[/\\]")
_INSTALLED = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|[/\\]torch[/\\](?:nn|optim|utils|cuda)[/\\]"
)
_GENERATED = re.compile(r"[/\\]torchinductor_[^/\\]+[/\\]|[/\\][a-z0-9]{2}[/\\]c[a-z0-9]{40,}\.py$")
"""Files that torch.compile writes, in its own cache folder or in one that the user chose."""
_STANDARD = re.compile(r"[/\\]lib(?:64)?[/\\]python3\.\d+[/\\]|^<frozen ")


class Frame(NamedTuple):
    """One level of a Python stack; line 0 means not known."""

    function: str
    file: str
    line: int


class Owner(NamedTuple):
    """The program's line answerable for something, and what library code it called to do it."""

    file: str  # "" when no frame of the program was on the stack
    line: int
    function: str
    detail: str  # the innermost library frame as `module.function`, "" when there is none


def is_observer(file: str) -> bool:
    """Whether a file belongs to stepscope's own machinery; its built-in programs do not."""
    return _OBSERVER.search(file) is not None


def is_standard(file: str) -> bool:
    """Whether a file belongs to Python's standard library."""
    return _STANDARD.search(file) is not None and _INSTALLED.search(file) is None


def is_program(file: str) -> bool:
    """Whether a file is the user's: neither installed nor generated, nor Python's, nor the
    observer's."""
    if _BUILT_IN_PROGRAM.search(file):
        return True
    if not file or (file.startswith("<") and not file.startswith("<ipython")):
        return False
    return not any(
        pattern.search(file) for pattern in (_OBSERVER, _INSTALLED, _GENERATED, _STANDARD)
    )


def find_owner(frames: Iterable[Frame]) -> Owner:
    """The innermost frame of the program in a stack given innermost first."""
    detail = ""
    for frame in frames:
        if is_program(frame.file):
            return Owner(frame.file, frame.line, frame.function, detail)
        if not detail and _INSTALLED.search(frame.file) and not is_observer(frame.file):
            detail = f"{_module(frame.file)}.{frame.function}"
    return Owner("", 0, "", detail)


def module_name(file: str) -> str:
    """The dotted name of an installed module, by its file; else that file's own."""
    parts = re.split(r"[/\\]", re.sub(r"(?:[/\\]__init__)?\.py$", "", file))
    for at in range(len(parts) - 1, 0, -1):
        if re.fullmatch(r"(?:site|dist)-packages|python3\.\d+", parts[at - 1]):
            return ".".join(parts[at:])
    return parts[-1]


def _module(file: str) -> str:
    parts = re.split(r"[/\\]", file.removesuffix(".py"))
    return parts[-2] if parts[-1] == "__init__" else parts[-1]
