"""What a fetcher fetches: the dataset's class, its transforms, the files of its code and the source
lines that construct the transforms. Only looks into instance dictionaries and source files; runs
none of the program's code.
"""

import ast
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, NamedTuple

from stepscope.probe.dataclock.points import CallPoint, is_timeable
from stepscope.probe.sites import is_user_code

_MAX_BYTES = 300_000  # a larger file is not a training program
_MAX_FILES = 50

Place = tuple[str, int]


def is_user_file(file: str) -> bool:
    """Whether a file is the user's own: not of a library, not of stepscope."""
    return is_user_code(compile("", file, "exec"))


def construction_lines(names: list[str], files: Iterable[str]) -> list[Place | None]:
    """For each class name in this order the one line that constructs it; None if not certain.
    Certain is the only list or call that constructs just these in this order, then the only one
    that constructs these among others, then a class that is constructed in one place only."""
    calls: dict[str, set[Place]] = {name: set() for name in names}
    just: list[list[Place]] = []
    among: list[list[Place]] = []
    for file, tree in _trees(set(names), files):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (name := _callee(node)) in calls:
                calls[name].add((file, node.lineno))
            parts = node.elts if isinstance(node, ast.List | ast.Tuple) else []
            built = [n for n in (node.args if isinstance(node, ast.Call) else parts) if _callee(n)]
            inner = [n for n in built if _callee(n) in calls]
            if [_callee(n) for n in inner] == names:
                rows = just if len(built) == len(inner) else among
                rows.append([(file, n.lineno) for n in inner])
    for rows in (just, among):
        if len(rows) == 1:
            return list(rows[0])
    return [next(iter(calls[n])) if len(calls[n]) == 1 else None for n in names]


def _trees(names: set[str], files: Iterable[str]) -> Iterator[tuple[str, ast.AST]]:
    loaded = [m for m in list(sys.modules.values()) if isinstance(m, ModuleType)]
    modules = [vars(module).get("__file__") for module in loaded]
    mine = dict.fromkeys(f for f in (*files, *modules) if isinstance(f, str) and is_user_file(f))
    paths = {Path(file).resolve(): file for file in mine}
    for path, file in list(paths.items())[:_MAX_FILES]:
        try:
            if path.suffix == ".py" and path.stat().st_size <= _MAX_BYTES:
                text = path.read_text(encoding="utf-8")
                if any(name in text for name in names):
                    yield file, ast.parse(text)
        except (OSError, SyntaxError, ValueError):
            continue


def _callee(node: ast.AST) -> str:
    """The last name of what a call calls, empty for anything else."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name
    return ""


_LIMIT = 200  # objects looked at
_HINTS = ("transform", "augment", "process", "tokeniz", "extractor")
_CONTAINERS = ("transforms", "transform", "target_transform")
_ACCESS = ("__getitem__", "__getitems__", "__iter__", "__next__")


class DatasetOrigin(NamedTuple):
    """The innermost dataset: its class, and where its items are made (None: not in Python)."""

    dataset: str
    file: str | None
    line: int | None


def dataset_origin(fetcher: Any) -> DatasetOrigin:
    """Names the dataset behind wrappers such as Subset and ConcatDataset."""
    inner = fetcher.dataset
    for dataset in _datasets(fetcher.dataset):
        inner = dataset
        if not _inner(dataset):
            break
    for code in _codes(inner):
        if not _is_torch(code.co_filename):
            return DatasetOrigin(type(inner).__name__, code.co_filename, code.co_firstlineno)
    return DatasetOrigin(type(inner).__name__, None, None)


def timeable_transforms(fetcher: Any) -> list[Any]:
    """The leaves among the transforms that can be timed, each once, in the order they stand."""
    return [t for t in _transforms(fetcher) if is_timeable(type(t))]


def traceable_files(fetcher: Any) -> frozenset[str]:
    """Files whose lines are followed: of datasets, collate, function transforms and the script."""
    codes: list[CodeType] = []
    for dataset in (*_datasets(fetcher.dataset), getattr(fetcher, "dataset_iter", None)):
        codes += _codes(dataset)
    for function in (vars(fetcher).get("collate_fn"), *_transforms(fetcher)):
        codes += _function_codes(function)
    files = {code.co_filename for code in codes}
    for name in ("__main__", "__mp_main__"):
        main = getattr(sys.modules.get(name), "__file__", None)
        files.update((main, str(Path(main).absolute())) if main else ())
    return frozenset(file for file in files if not _is_torch(file))


def definition_line(thing: Any) -> tuple[str | None, int | None]:
    """Where a transform's work is written: the function it holds, else its class's methods."""
    for function in (thing, *_vars(thing).values()):
        if isinstance(function, FunctionType):
            return function.__code__.co_filename, function.__code__.co_firstlineno
    for cls in type(thing).__mro__:
        for name in ("__call__", "forward", "transform", "_transform"):
            for code in _function_codes(vars(cls).get(name)):
                if not _is_torch(code.co_filename):
                    return code.co_filename, code.co_firstlineno
    return None, None


def _reach(todo: list[Any], inner: Callable[[Any], list[Any]]) -> Iterator[Any]:
    """Things and those inside them, each once, first branch first."""
    seen: set[int] = set()
    while todo and len(seen) < _LIMIT:
        thing = todo.pop(0)
        if id(thing) not in seen:
            seen.add(id(thing))
            yield thing
            todo[:0] = inner(thing)


def _datasets(dataset: Any) -> Iterator[Any]:
    return _reach([dataset], _inner)


def _inner(dataset: Any) -> list[Any]:
    from torch.utils.data import Dataset

    inner: list[Any] = []
    for name, value in _vars(dataset).items():
        if name == "datasets" and isinstance(value, (list, tuple)):
            inner += value
        elif isinstance(value, Dataset) or (name == "dataset" and _vars(value)):
            inner.append(value)
    return inner


def _transforms(fetcher: Any) -> list[Any]:
    todo: list[Any] = []
    for owner in (*_datasets(fetcher.dataset), vars(fetcher).get("collate_fn")):
        if not isinstance(owner, FunctionType):
            named = _vars(owner).items()
            todo += [v for name, v in named if any(hint in name.lower() for hint in _HINTS)]
    return [
        thing
        for thing in _reach(todo, _children)
        if callable(thing) and not isinstance(thing, type) and not _children(thing)
    ]


def _children(thing: Any) -> list[Any]:
    if isinstance(thing, (list, tuple)):
        return list(thing[:_LIMIT])
    if isinstance(thing, dict):
        return list(thing.values())[:_LIMIT]
    values = _vars(thing)
    children = [values[name] for name in _CONTAINERS if values.get(name) is not None]
    if type(thing).__module__.startswith("torch.nn"):
        children += values.get("_modules", {}).values()
    return children


def _codes(thing: Any) -> list[CodeType]:
    """The code by which items come out of a dataset or iterator."""
    found = [thing.gi_code] if isinstance(thing, GeneratorType) else []
    for cls in type(thing).__mro__:
        for name in _ACCESS:
            found += _function_codes(vars(cls).get(name))
    return found


def _function_codes(function: Any) -> list[CodeType]:
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, (FunctionType, CallPoint)):
        function = vars(type(function)).get("__call__")
    if isinstance(function, CallPoint):
        function = function.own
    codes: list[CodeType] = []
    while isinstance(function, FunctionType) and len(codes) < 8:
        codes.append(function.__code__)
        function = vars(function).get("__wrapped__")
    return codes


def _vars(thing: Any) -> dict[str, Any]:
    try:
        return dict(vars(thing))
    except TypeError:
        return {}


def _is_torch(file: str) -> bool:
    import torch

    return file.startswith(os.path.join(os.path.dirname(torch.__file__), ""))
