"""Workloads of the user and of installed libraries, checked without importing them."""

import ast
import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path

from stepscope.record.errors import UsageError
from stepscope.workloads import hf_names
from stepscope.workloads.workload import Workload

_BUILDERS = "stepscope.workloads."


def _torchvision(spec: str, name: str) -> Workload:
    installed("torchvision", spec)
    make = _BUILDERS + "image_libraries:torchvision_model"
    about = "torchvision's, random weights"
    return Workload(spec, about, "images", make, {"name": name}, classes=1000)


def _timm(spec: str, name: str) -> Workload:
    installed("timm", spec)
    make = _BUILDERS + "image_libraries:timm_model"
    return Workload(spec, "timm's, random weights", "images", make, {"name": name}, classes=1000)


def _hf(spec: str, name: str) -> Workload:
    return hf_names.workload(spec, name, installed("transformers", spec))


LIBRARIES: dict[str, Callable[[str, str], Workload]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "hf": _hf,
}


def from_file(spec: str, file: str, factory: str) -> Workload:
    """The model that a function (or module class) of the user's file builds."""
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"{spec}: there is no file {file}")
    _defines(spec, path, factory)
    make = _BUILDERS + "given:from_user"
    options = {"file": file, "factory": factory}
    return Workload(spec, f"{factory} of {path.name}", "given", make, options)


def from_module(spec: str, module: str, factory: str) -> Workload:
    """The same of a module that Python can import from the working directory or its own path."""
    path = _source(module)
    if path is None:
        raise UsageError(f"{spec}: there is no module {module} here or on Python's path")
    if path.suffix == ".py":
        _defines(spec, path, factory)
    make = _BUILDERS + "given:from_user"
    options = {"module": module, "factory": factory}
    return Workload(spec, f"{factory} of {module}", "given", make, options)


def installed(library: str, spec: str) -> Path:
    """The folder of an installed library."""
    found = PathFinder.find_spec(library)
    if found is None or found.origin is None:
        raise UsageError(f"{spec} needs {library}, which is not installed: pip install {library}")
    return Path(found.origin).parent


def _source(module: str) -> Path | None:
    """Where a module lies; its parents are looked up, not imported. None: nowhere."""
    places, found = ["", *sys.path], None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        found = PathFinder.find_spec(name, places)
        if found is None:
            return None
        places = list(found.submodule_search_locations or [])
    return Path(found.origin) if found is not None and found.origin else None


def _defines(spec: str, path: Path, factory: str) -> None:
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as problem:
        line = getattr(problem, "lineno", None)
        where = f"{path.name}:{line}" if line else path.name
        raise UsageError(f"{spec}: {where} is not Python: {problem.args[0]}") from None
    names = set(_names(tree.body))
    if factory in names or "*" in names:
        return
    own = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    near = get_close_matches(factory, own, n=1)
    listed = [*near, *(name for name in own if name not in near and not name.startswith("_"))]
    raise UsageError(
        f"{spec}: {path.name} defines no {factory or 'nameless factory'}; "
        f"it has {', '.join(listed[:12]) or 'no function or class'}"
    )


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """Names that statements outside functions and classes bind; "*" where they cannot be known."""
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign() | ast.AnnAssign():
                yield from _targets(statement)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                for field in ("body", "orelse", "finalbody"):
                    yield from _names(getattr(statement, field, []))
                for handler in getattr(statement, "handlers", []):
                    yield from _names(handler.body)


def _targets(statement: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                yield node.id
