"""The patch of a tune: a unified diff in its folder, measured in a scratch copy like any other
trial."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from stepscope.fixes.edit import calls
from stepscope.fixes.edit.locate import LeftToUser, PatchPart, SourceFiles, locate_edits
from stepscope.fixes.edit.source import PatchError, Source, apply_changes
from stepscope.fixes.registry import parse_fixes
from stepscope.measure.source_diff import make_diff
from stepscope.measure.trial.pool import (
    BudgetSpent,
    TrialPool,
    compare_trials,
    trial_noise_floor,
)
from stepscope.measure.trial.record import Trial, TrialRequest
from stepscope.record.errors import StepscopeError
from stepscope.record.fix import FixOutcome
from stepscope.record.privacy import masked_source
from stepscope.record.trial import StopReason
from stepscope.tune.document import (
    ByHand,
    ConfirmFailure,
    PatchEdit,
    PatchStatus,
    Speedup,
    TunedPatch,
)
from stepscope.tune.request import PATCH_FILE
from stepscope.tune.search.confirm import Confirmation
from stepscope.tune.search.ladder import SearchResult


def write_patch(
    cwd: Path, fixes: Sequence[str], outcomes: Iterable[FixOutcome], seen: Mapping[str, Any]
) -> TunedPatch:
    """The patch for fixes, from where each took effect in a trial. `seen` is the document of a
    baseline run: files must not have changed since."""
    files = SourceFiles(cwd, seen)
    applied = {one.name: one.applied for one in outcomes}
    done: dict[str, list[PatchPart]] = {}
    by_hand: list[ByHand] = []
    for fix, value in parse_fixes(fixes):
        found = locate_edits(fix, value, applied.get(fix.name, ()), files)
        left = [one for one in found if isinstance(one, LeftToUser)]
        for part in found:
            if isinstance(part, PatchPart):
                left += _added(part, done, files)
        if left or not found:
            reasons = "; ".join(f"{one.place}: {one.why}" for one in left)
            words = fix.edit(value, "").words
            by_hand.append(ByHand(fix.name, f"{words} ({reasons})" if reasons else words))
    by_hand += _without_workers(done)
    text = "".join(
        make_diff(name, files.source(name).text, _rendered(files.source(name), parts))
        for name, parts in sorted(done.items())
        if parts
    )
    return TunedPatch(
        text=text or None,
        edits=tuple(
            PatchEdit(one.fix, one.file, one.line, one.words) for one in chain(*done.values())
        ),
        by_hand=tuple(by_hand),
        status=PatchStatus.NOT_MEASURED if text else PatchStatus.NO_EDIT,
    )


def _added(
    part: PatchPart, done: dict[str, list[PatchPart]], files: SourceFiles
) -> list[LeftToUser]:
    """Add a part if the file still compiles and the patch shows no secret."""
    parts = [*done.get(part.file, ()), part]
    try:
        source = files.source(part.file)
        made = _rendered(source, parts)
        compile(made, part.file, "exec", dont_inherit=True)
        shown = make_diff(part.file, source.text, made).splitlines()
        if any(masked_source(line) != line for line in shown):
            raise PatchError("a nearby line holds a secret")
    except (PatchError, SyntaxError, ValueError) as problem:
        why = str(problem) if isinstance(problem, PatchError) else "it would not compile"
        return [LeftToUser(f"{part.file}:{part.line}", why)]
    done[part.file] = parts
    return []


def _rendered(source: Source, parts: Iterable[PatchPart]) -> str:
    wanted = [one for part in parts for one in part.arguments]
    changes = [one for part in parts for one in part.changes]
    together = dict.fromkeys([*changes, *calls.argument_changes(source, wanted)])
    return apply_changes(source.text, together)


def _without_workers(done: dict[str, list[PatchPart]]) -> list[ByHand]:
    """Remove persistent workers from loaders without workers, which would refuse them."""
    refused = []
    for name, parts in done.items():
        try:
            calls.check_workers([one for part in parts for one in part.arguments])
        except PatchError as problem:
            taken = [part for part in parts if any(map(calls.needs_workers, part.arguments))]
            done[name] = [part for part in parts if part not in taken]
            for one in taken:
                refused.append(ByHand(one.fix, f"{one.words} ({name}:{one.line}: {problem})"))
    return refused


_PROCESSES: Final = 2


def write_and_measure(
    search: SearchResult,
    final: Confirmation | None,
    pool: TrialPool,
    seen: Mapping[str, Any],
    cwd: Path,
    folder: Path,
) -> TunedPatch:
    """The patch for the ladder, measured if there are fresh baselines and nobody interrupted."""
    patch = write_patch(cwd, search.fixes, search.rungs[-1].trials[-1].fixes, seen)
    if patch.text is None:
        return patch
    path = folder / PATCH_FILE
    path.write_text(patch.text)
    shown = path.relative_to(cwd) if path.is_relative_to(cwd) else path
    patch = replace(patch, path=str(shown))
    if final is None or not final.baseline or final.failure is ConfirmFailure.INTERRUPTED:
        return patch
    if pool.budget.left < pool.patching_s(search.fixes, _PROCESSES):
        return replace(patch, status=PatchStatus.NO_BUDGET)
    made: list[Trial] = []
    steps = pool.steps_of(search.fixes)
    for _ in range(_PROCESSES):
        try:
            trial = pool.budget(TrialRequest(steps=steps, proof=True, patched=patch.text))
        except BudgetSpent:
            return replace(patch, status=PatchStatus.NO_BUDGET)
        except KeyboardInterrupt:
            search.stopped = StopReason.INTERRUPTED
            return patch
        except StepscopeError as problem:
            return replace(patch, detail=str(problem))
        if not trial.timed:
            return replace(patch, status=PatchStatus.FAILED, detail=trial.failure)
        made.append(trial)
    floor = trial_noise_floor([final.baseline, made], pool.objective)
    found = compare_trials(final.baseline, made, pool.objective, floor)
    return replace(patch, status=PatchStatus.MEASURED, **Speedup.fields(found))
