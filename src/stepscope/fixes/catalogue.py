"""The fixes there are, in the order in which they take hold: the first is outermost."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Final

from stepscope.fixes.base import Fix
from stepscope.record.errors import UsageError

_MODULES: Final[Mapping[str, str]] = {
    "expandable_segments": "stepscope.fixes.expandable_segments",
    "affinity": "stepscope.fixes.affinity",
    "threads": "stepscope.fixes.threads",
    "batch": "stepscope.fixes.batch",
    "drop_last": "stepscope.fixes.drop_last",
    "cache": "stepscope.fixes.cache",
    "workers": "stepscope.fixes.workers",
    "persistent": "stepscope.fixes.persistent",
    "pin": "stepscope.fixes.pin",
    "prefetch": "stepscope.fixes.prefetch",
    "recycle": "stepscope.fixes.recycle",
    "nosync": "stepscope.fixes.nosync",
    "lazyitem": "stepscope.fixes.lazyitem",
    "tf32": "stepscope.fixes.tf32",
    "cudnn_benchmark": "stepscope.fixes.cudnn_benchmark",
    "cuda_graph": "stepscope.fixes.cuda_graph",
    "accumulate": "stepscope.fixes.accumulate",
    "amp": "stepscope.fixes.amp",
    "sdpa": "stepscope.fixes.sdpa",
    "channels_last": "stepscope.fixes.channels_last",
    "checkpointing": "stepscope.fixes.checkpointing",
    "compile": "stepscope.fixes.compile",
    "foreach": "stepscope.fixes.foreach",
    "fused_optimizer": "stepscope.fixes.fused_optimizer",
}
"""Where each fix is: the one list a new one is added to. Imported when first asked for."""
NAMES: Final = tuple(_MODULES)


def fix(name: str) -> Fix:
    """A fix by its name. Raises UsageError."""
    if name not in NAMES:
        near = _nearest(name)
        hint = f"did you mean {near}?" if near else "stepscope fixes lists them"
        raise UsageError(f"no fix named {name}: {hint}")
    found: Fix = import_module(_MODULES[name]).FIX
    return found


def every() -> list[Fix]:
    """All fixes, in order."""
    return [fix(name) for name in NAMES]


def parse(asked: Iterable[str]) -> list[tuple[Fix, Any]]:
    """What `--fix` was given, checked and put in order. Raises UsageError."""
    found: dict[str, tuple[Fix, Any]] = {}
    for text in asked:
        name, equals, value = text.partition("=")
        if name in found:
            raise UsageError(f"--fix {name} is given twice")
        one = fix(name)
        found[name] = (one, one.parse(value if equals else None))
    for one, _ in found.values():
        for other in one.bad_with:
            if other in found:
                raise UsageError(f"--fix {one.name} and --fix {other} do not go together")
    return [found[name] for name in NAMES if name in found]


def environment(fixes: Iterable[tuple[Fix, Any]]) -> dict[str, str]:
    """The variables a program with these fixes must be started with."""
    found: dict[str, str] = {}
    for one, value in fixes:
        found |= one.environment(value)
    return found


def _nearest(name: str) -> str | None:
    from difflib import get_close_matches

    near = get_close_matches(name, NAMES, n=1)
    return near[0] if near else None
