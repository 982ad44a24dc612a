"""Which tests start another Python, compute with torch or read whole recordings: by the names
their code uses.

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
_NAMES = frozenset(
    [
        *("subprocess", "multiprocessing", "pty", "warm", "playwright", "nbclient"),
        *("ForkServer", "TrialRunner", "observe_program", "run_child", "chromium"),
    ]
)
_LONG = frozenset(("torch", "transformers", "lightning", "fixed", "TRACES", "write_image"))
_current: list[pytest.Item] = []


def launches(item: pytest.Item) -> bool:
    """Whether a test starts processes, as far as its code tells."""
    return item.get_closest_marker("launches") is not None or _uses(item, _NAMES)


def takes_long(item: pytest.Item) -> bool:
    """Whether a test computes with torch, draws pictures or reads whole recordings."""
    return _uses(item, _LONG)


def _uses(item: pytest.Item, wanted: frozenset[str]) -> bool:
    fixtures = getattr(item, "_fixtureinfo", None)
    definitions = fixtures.name2fixturedefs.values() if fixtures else ()
    functions = [getattr(item, "function", None), *(d.func for ds in definitions for d in ds)]
    return any(isinstance(one, FunctionType) and _names(one, wanted) for one in functions)


_known: dict[tuple[CodeType, frozenset[str]], bool] = {}


def _names(function: FunctionType, wanted: frozenset[str]) -> bool:
    """Whether a function, or one of tests/ that it calls, names one of these."""
    key = (function.__code__, wanted)
    if key not in _known:
        _known[key] = False  # while it is looked at
        _known[key] = any(_leads(name, function, wanted) for name in _all_names(key[0]))
    return _known[key]


def _all_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_names(constant)


def _leads(name: str, function: FunctionType, wanted: frozenset[str]) -> bool:
    if name in wanted:
        return True
    value = function.__globals__.get(name)
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in wanted
    inner = getattr(value, "__wrapped__", value)
    parts = vars(inner).values() if isinstance(inner, type) else [inner]
    methods = [one for one in parts if isinstance(one, FunctionType)]
    return any(_ours(one) and _names(one, wanted) for one in methods)


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
    reader = "stepscope.trace.workers" in str(args)  # our own, without torch
    return f"starts {name}" if name.startswith("python") and not reader else None


def _before(owner: type, name: str, what: Callable[..., str | None]) -> None:
    """Have `started` look at what a method is about to do."""
    original = getattr(owner, name)

    def guarded(*arguments: Any, **options: Any) -> Any:
        if (found := what(*arguments)) is not None:
            started(found)
        return original(*arguments, **options)

    setattr(owner, name, guarded)
