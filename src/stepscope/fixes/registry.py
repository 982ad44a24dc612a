"""The fixes there are, in the order in which they are installed (the first is outermost)."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Final

from stepscope.fixes.base import Fix
from stepscope.record.errors import UsageError

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
"""Where each fix is: the one list a new one is added to. Imported when first asked for."""
FIX_NAMES: Final = tuple(_MODULES)


def fix_named(name: str) -> Fix:
    """A fix by its name. Raises UsageError."""
    if name not in FIX_NAMES:
        near = _nearest_name(name)
        hint = f"did you mean {near}?" if near else "stepscope fixes lists them"
        raise UsageError(f"no fix named {name}: {hint}")
    found: Fix = import_module(_MODULES[name]).FIX
    return found


def all_fixes() -> list[Fix]:
    """All fixes, in order."""
    return [fix_named(name) for name in FIX_NAMES]


def parse_fixes(asked: Iterable[str]) -> list[tuple[Fix, Any]]:
    """What `--fix` was given, checked and put in order. Raises UsageError."""
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
                raise UsageError(f"--fix {one.name} and --fix {other} do not go together")
    return [found[name] for name in FIX_NAMES if name in found]


def fix_variables(fixes: Iterable[tuple[Fix, Any]]) -> dict[str, str]:
    """The variables a program with these fixes must be started with."""
    found: dict[str, str] = {}
    for one, value in fixes:
        found |= one.environment(value)
    return found


def _nearest_name(name: str) -> str | None:
    from difflib import get_close_matches

    near = get_close_matches(name, FIX_NAMES, n=1)
    return near[0] if near else None
