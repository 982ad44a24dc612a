"""Keeps the tests that start no other Python apart from those that do.

A test `launches` where it, a fixture of it or a helper of theirs in tests/ names what starts
processes, or where it is marked so itself. One that is not and starts a Python fails.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from multiprocessing import popen_spawn_posix
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NAMES = {
    *("subprocess", "multiprocessing", "pty", "warm", "playwright", "nbclient"),
    *("ForkServer", "TrialRunner", "observe_program", "run_child", "chromium"),
}
_current: list[pytest.Item] = []


def launches(item: pytest.Item) -> bool:
    """Whether a test starts processes, as far as its code tells."""
    if item.get_closest_marker("launches") is not None:
        return True
    fixtures = getattr(item, "_fixtureinfo", None)
    definitions = fixtures.name2fixturedefs.values() if fixtures else ()
    functions = [getattr(item, "function", None), *(d.func for ds in definitions for d in ds)]
    return any(isinstance(function, FunctionType) and _names(function) for function in functions)


_known: dict[CodeType, bool] = {}


def _names(function: FunctionType) -> bool:
    """Whether a function, or one of tests/ that it calls, names what starts processes."""
    code = function.__code__
    if code not in _known:
        _known[code] = False  # while it is looked at
        _known[code] = any(_starts(name, function) for name in _all_names(code))
    return _known[code]


def _all_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_names(constant)


def _starts(name: str, function: FunctionType) -> bool:
    if name in _NAMES:
        return True
    value = function.__globals__.get(name)
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in _NAMES
    inner = getattr(value, "__wrapped__", value)
    if isinstance(inner, type):
        methods = [one for one in vars(inner).values() if isinstance(one, FunctionType)]
        return any(_ours(one) and _names(one) for one in methods)
    return isinstance(inner, FunctionType) and _ours(inner) and _names(inner)


def _ours(function: FunctionType) -> bool:
    return function.__code__.co_filename.startswith(TESTS)


def started(what: str) -> None:
    """Called where a process is started: fails a test that is not known to do that."""
    for item in _current:
        if item.get_closest_marker("launches") is None:
            pytest.fail(f"{what}, in a test not marked `launches`", pytrace=True)


def watch(item: pytest.Item) -> None:
    """The test that runs from now on."""
    _current[:] = [item]


def guard() -> None:
    """Look at every start of a Python in this process from now on; forks are quick."""
    _before(subprocess.Popen, "__init__", _of_python)
    _before(popen_spawn_posix.Popen, "_launch", lambda *_: "starts a Python by spawn")


def _of_python(_: Any, args: Any, *rest: Any) -> str | None:
    first = args if isinstance(args, (str, bytes, os.PathLike)) else next(iter(args), "")
    name = os.path.basename(os.fsdecode(first))
    return f"starts {name}" if name.startswith("python") else None


def _before(owner: type, name: str, what: Callable[..., str | None]) -> None:
    """Have `started` look at what a method is about to do."""
    original = getattr(owner, name)

    def guarded(*arguments: Any, **options: Any) -> Any:
        if (found := what(*arguments)) is not None:
            started(found)
        return original(*arguments, **options)

    setattr(owner, name, guarded)
