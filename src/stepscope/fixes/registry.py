"""All fixes, including those of other packages, in installation order: the first is outermost."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from stepscope.fixes.base import Fix
from stepscope.record.errors import UsageError
from stepscope.record.version import entry_points

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS: Final = "stepscope.fixes"
"""The entry point group for other packages' fixes: `name = "package.module:FIX"`."""
_MODULES: Final[Mapping[str, str]] = {
    "expandable_segments": "stepscope.fixes.memory.expandable_segments",
    "affinity": "stepscope.fixes.data.affinity",
    "threads": "stepscope.fixes.data.threads",
    "batch": "stepscope.fixes.data.batch",
    "drop_last": "stepscope.fixes.data.drop_last",
    "cache": "stepscope.fixes.data.cache",
    "workers": "stepscope.fixes.data.workers",
    "persistent": "stepscope.fixes.data.persistent",
    "pin": "stepscope.fixes.data.pin",
    "prefetch": "stepscope.fixes.data.prefetch",
    "recycle": "stepscope.fixes.data.recycle",
    "nosync": "stepscope.fixes.waiting.nosync",
    "lazyitem": "stepscope.fixes.waiting.lazyitem",
    "tf32": "stepscope.fixes.arithmetic.tf32",
    "cudnn_benchmark": "stepscope.fixes.arithmetic.cudnn_benchmark",
    "cuda_graph": "stepscope.fixes.launching.cuda_graph.fix",
    "accumulate": "stepscope.fixes.memory.accumulate",
    "amp": "stepscope.fixes.arithmetic.amp",
    "sdpa": "stepscope.fixes.arithmetic.sdpa",
    "channels_last": "stepscope.fixes.arithmetic.channels_last",
    "checkpointing": "stepscope.fixes.memory.checkpointing",
    "compile": "stepscope.fixes.launching.compile",
    "foreach": "stepscope.fixes.launching.foreach",
    "fused_optimizer": "stepscope.fixes.launching.fused_optimizer",
}
"""The module of each fix: the only list to extend for a new one. Imported on first use."""
FIX_NAMES: Final = tuple(_MODULES)
"""Of stepscope's own fixes."""


class PluginError(UsageError):
    """A fix of another package that cannot be used."""


def fix_named(name: str) -> Fix:
    """A fix by its name. Raises UsageError."""
    found = find_fix(name)
    if found is None:
        from difflib import get_close_matches

        near = get_close_matches(name, (*FIX_NAMES, *_entry_points()), n=1)
        hint = f"did you mean {near[0]}?" if near else "`stepscope fixes` lists them"
        raise UsageError(f"no fix named {name}: {hint}")
    return found


def find_fix(name: str) -> Fix | None:
    """A fix by its name, or None. Raises PluginError if it cannot be loaded."""
    if name in _MODULES:
        found: Fix = import_module(_MODULES[name]).FIX
        return found
    point = _entry_points().get(name)
    return None if point is None else _loaded(point)


def all_fixes(quiet: bool = False) -> list[Fix]:
    """All fixes, in order. One of another package that cannot be loaded is left out; that is said
    unless `quiet`."""
    found = {name: fix_named(name) for name in FIX_NAMES}
    for name, point in _entry_points(quiet).items():
        try:
            found[name] = _loaded(point)
        except PluginError as problem:
            if not quiet:
                _complain(str(problem))
    return [found[name] for name in _ordered_names(found)]


def exclude_each_other(one: str, other: str) -> bool:
    """Whether two different fixes, by name, cannot be had together."""
    first, second = find_fix(one), find_fix(other)
    if first is None or second is None or one == other:
        return False
    return other in first.bad_with or one in second.bad_with


def in_order(fixes: Iterable[str]) -> tuple[str, ...]:
    """Fixes as `--fix` takes them, in the order in which they are installed. Raises UsageError."""
    texts = {text.partition("=")[0]: text for text in fixes}
    return tuple(texts[name] for name in _ordered_names({n: fix_named(n) for n in texts}))


def parse_fixes(asked: Iterable[str]) -> list[tuple[Fix, Any]]:
    """The values of `--fix`, checked and sorted. Raises UsageError."""
    found: dict[str, tuple[Fix, Any]] = {}
    for text in asked:
        name, equals, value = text.partition("=")
        if name in found:
            raise UsageError(f"--fix {name} is given twice")
        one = fix_named(name)
        found[name] = (one, one.parse(value if equals else None))
    for one, _ in found.values():
        for other in one.bad_with:
            if other in found:
                raise UsageError(f"--fix {one.name} cannot be combined with --fix {other}")
    return [found[name] for name in _ordered_names({n: fix for n, (fix, _) in found.items()})]


def fix_variables(fixes: Iterable[tuple[Fix, Any]]) -> dict[str, str]:
    """The variables a program with these fixes must be started with."""
    return {name: text for one, value in fixes for name, text in one.environment(value).items()}


def _ordered_names(fixes: Mapping[str, Fix]) -> Sequence[str]:
    """Our own as listed; other packages' after the one they name, or at the end."""
    order = [*FIX_NAMES]
    for name in sorted(fixes.keys() - _MODULES.keys()):
        outer = fixes[name].inside_of
        order.insert(order.index(outer) + 1 if outer in order else len(order), name)
    return [name for name in order if name in fixes]


def _entry_points(quiet: bool = False) -> "Mapping[str, EntryPoint]":
    """What other packages name; ours cannot be replaced."""
    found = {}
    for point in entry_points(ENTRY_POINTS):
        if point.name not in _MODULES and point.name not in found:
            found[point.name] = point
        elif not quiet:
            _complain(f"{_called(point)}: there is a fix of that name already")
    return found


@cache
def _loaded(point: "EntryPoint") -> Fix:
    """Raises PluginError."""
    try:
        found = point.load()
    except Exception as problem:
        raise PluginError(f"{_called(point)} cannot be loaded: {problem!r}") from problem
    if not isinstance(found, Fix) or getattr(found, "name", None) != point.name:
        raise PluginError(f"{_called(point)}: {point.value} is not a Fix named {point.name}")
    return found


def _called(point: "EntryPoint") -> str:
    package = point.dist.name if point.dist is not None else point.value.partition(":")[0]
    return f"fix {point.name} of {package}"


@cache
def _complain(problem: str) -> None:
    print(f"stepscope: {problem}", file=sys.stderr)
