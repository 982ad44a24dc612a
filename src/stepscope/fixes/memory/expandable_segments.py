"""Let the CUDA allocator's segments grow."""

import os
import re
from typing import Any

from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit
from stepscope.fixes.lazy import torch
from stepscope.record.fix import NO_CUDA, Applied, NotApplied, Reason, Target

_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_KEY = "expandable_segments"
ALLOCATOR = Target("allocator", "the program's CUDA allocator")
PROGRAM_SETS_VARIABLE = Reason(
    "program_sets_variable", "the program sets {code} itself: add {value} to it there"
)


class ExpandableSegments(Fix):
    """Adds `expandable_segments:True` to the allocator's variable. Some versions of torch read only
    the older name, others prefer the newer one and warn about the older alone: both are set to the
    same text."""

    name = "expandable_segments"
    group = "memory"
    title = "let the CUDA allocator's segments grow, against fragmentation"
    kind = FixKind.EXACT
    effort = "an environment variable"
    edited_at_top = True
    needs = "cuda"
    missing = "the program did not use CUDA"
    acts_in_step = False
    only_if_found = True
    saves_memory = True

    def environment(self, value: Any) -> dict[str, str]:
        own = next((os.environ[n] for n in reversed(_NAMES) if os.environ.get(n)), "")
        parts = map(str.strip, re.findall(r"(?:\[[^]]*(?:]|$)|[^,\[])+", own))  # [1,2] is one
        kept = [part for part in parts if part and part.partition(":")[0].strip() != _KEY]
        return dict.fromkeys(_NAMES, ",".join([*kept, f"{_KEY}:True"]))

    def check(self, live: LiveProgram) -> NotApplied | None:
        if torch.version.cuda is None:
            return NotApplied(NO_CUDA)
        own = next((name for name in _NAMES if name in live.environment_changed), None)
        return None if own is None else _set_by_program(own)

    def install(self, value: Any, context: FixContext) -> None:
        name = next((n for n in _NAMES if f"{_KEY}:True" not in os.environ.get(n, "")), None)
        if torch.version.cuda is None:
            context.not_applied(NotApplied(NO_CUDA))
        elif name is not None:
            context.not_applied(_set_by_program(name))
        else:
            context.applied(Applied(ALLOCATOR))

    def edit(self, value: Any, line: str) -> SourceEdit:
        return SourceEdit(
            f"start the program with {_NAMES[0]}={_KEY}:True, or set that before importing torch",
            before=("import os", f'os.environ["{_NAMES[0]}"] = "{_KEY}:True"'),
        )


def _set_by_program(name: str) -> NotApplied:
    return NotApplied(PROGRAM_SETS_VARIABLE, code=name, value=f"{_KEY}:True")


FIX = ExpandableSegments()
