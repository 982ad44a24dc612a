"""The patch of a tune: written, kept, and measured in a scratch copy like any other trial."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from stepscope.record.errors import StepscopeError
from stepscope.stats.verdict import Comparison
from stepscope.tune.ask import Ask
from stepscope.tune.final import Confirmation
from stepscope.tune.gain import compared, floor_of
from stepscope.tune.home import PATCH
from stepscope.tune.lab import Lab
from stepscope.tune.patch import Patch, write_patch
from stepscope.tune.rungs import Search
from stepscope.tune.trial import Trial

_PROCESSES: Final = 2
_ENOUGH: Final = 0.5  # of what measuring should take must be left of the budget


@dataclass(frozen=True, slots=True)
class Patching:
    """What can be written into the source, and what that is worth."""

    patch: Patch
    path: str | None
    """Where it was written; None where no edit could be located."""
    comparison: Comparison | None = None
    """Against the program as it is; None where it was not measured."""
    why: str | None = None
    """Why not; None where it was."""

    def to_json(self) -> dict[str, Any]:
        found = self.comparison
        return {
            "path": self.path,
            "text": self.patch.text,
            "edits": [asdict(edit) for edit in self.patch.edits],
            "by_hand": [{"fix": fix, "words": words} for fix, words in self.patch.by_hand],
            "speedup": None if found is None else found.ratio,
            "low": None if found is None else found.low,
            "high": None if found is None else found.high,
            "verdict": None if found is None else str(found.verdict),
            "why": self.why,
        }


def patched(
    search: Search,
    final: Confirmation | None,
    lab: Lab,
    seen: Mapping[str, Any],
    cwd: Path,
    folder: Path,
) -> Patching:
    """The patch for the ladder that was found; measured where there are fresh baselines."""
    last = search.rungs[-1].trials[-1]
    patch = write_patch(cwd, search.fixes, last.fixes, seen)
    if patch.text is None:
        return Patching(patch, None, why="no edit could be located")
    path = folder / PATCH
    path.write_text(patch.text)
    shown = str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)
    if final is None or not final.baseline:
        return Patching(patch, shown, why="not measured")
    if lab.budget.left < _ENOUGH * lab.patching_s(search.fixes, _PROCESSES):
        return Patching(patch, shown, why="not measured: the budget was spent")
    made: list[Trial] = []
    steps = lab.steps_of(search.fixes)
    for _ in range(_PROCESSES):
        try:
            trial = lab.budget(Ask(steps=steps, proof=True, patched=patch.text))
        except StepscopeError as problem:
            return Patching(patch, shown, why=f"not measured: {problem}")
        if not (trial.ok and trial.step_ms):
            return Patching(patch, shown, why=f"it fails: {trial.why}")
        made.append(trial)
    floor = floor_of([final.baseline, made], lab.objective)
    return Patching(patch, shown, compared(final.baseline, made, lab.objective, floor))
