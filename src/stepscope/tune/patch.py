"""The patch of a tune: a unified diff in its folder, measured in a scratch copy like any other
trial."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from stepscope.fixes.edit import calls
from stepscope.fixes.edit.locate import (
    LeftToUser,
    PatchPart,
    SourceFiles,
    by_call,
    locate_edits,
)
from stepscope.fixes.edit.source import PatchError, Source, apply_changes
from stepscope.fixes.edit.statements import apply_call
from stepscope.fixes.registry import in_order, parse_fixes
from stepscope.measure.source_diff import make_diff
from stepscope.measure.trial.pool import (
    BudgetSpent,
    TrialPool,
    compare_trials,
    trial_noise_floor,
)
from stepscope.measure.trial.record import Trial, TrialRequest
from stepscope.record.errors import StepscopeError
from stepscope.record.fix import Applied, FixOutcome
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

_Parts = dict[str, list[PatchPart]]  # by file
_APPLY: Final = "stepscope.apply"


def write_patch(
    cwd: Path, fixes: Sequence[str], outcomes: Iterable[FixOutcome], seen: Mapping[str, Any]
) -> TunedPatch:
    """The patch for fixes, from where each took effect in a trial. What cannot be written there is
    applied by a call where the program starts. `seen` is the document of a baseline run: files must
    not have changed since."""
    files = SourceFiles(cwd, seen)
    applied = {one.name: one.applied for one in outcomes}
    done: _Parts = {}
    unwritten: dict[str, list[LeftToUser]] = {}
    for fix, value in parse_fixes(fixes):
        found = locate_edits(fix, value, applied.get(fix.name, ()), files)
        left = [one for one in found if isinstance(one, LeftToUser)]
        for part in found:
            if isinstance(part, PatchPart):
                left += _added(part, done, files)
        if left or not found:
            unwritten[fix.name] = left
    called = [name for name in unwritten if applied.get(name)]
    alone = _without(called, done)
    lacking = _without_workers(alone)
    unwritten |= lacking
    called += lacking
    texts = [text for text in in_order(fixes) if text.partition("=")[0] in called]
    try:
        done = _with_call(texts, applied, unwritten, _without(called, alone), files)
        unwritten = {name: left for name, left in unwritten.items() if name not in called}
    except PatchError as problem:
        _without_workers(done)
        for name in called:
            unwritten[name].append(LeftToUser(_APPLY, str(problem)))
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
        by_hand=tuple(
            ByHand(fix.name, _explained(fix.edit(value, "").words, unwritten[fix.name]))
            for fix, value in parse_fixes(fixes)
            if fix.name in unwritten
        ),
        status=PatchStatus.NOT_MEASURED if text else PatchStatus.NO_EDIT,
    )


def _explained(words: str, left: Iterable[LeftToUser]) -> str:
    """Words with the reasons why a fix is not written where it took effect."""
    reasons = "; ".join(f"{one.place}: {one.why}" for one in left)
    return f"{words} ({reasons})" if reasons else words


def _with_call(
    texts: Sequence[str],
    applied: Mapping[str, Sequence[Applied]],
    unwritten: Mapping[str, Sequence[LeftToUser]],
    done: _Parts,
    files: SourceFiles,
) -> _Parts:
    """The parts and a call that applies these fixes. Raises PatchError."""
    names = [text.partition("=")[0] for text in texts]
    if not names:
        return done
    file, changes = by_call(texts, [one for name in names for one in applied[name]], files)
    for name, text in zip(names, texts, strict=True):
        words = _explained(f"call {apply_call([text])}", unwritten[name])
        refused = _added(PatchPart(name, file, 1, words, changes=changes), done, files)
        if refused:
            raise PatchError(refused[0].why)
    return done


def _without(names: Collection[str], done: _Parts) -> _Parts:
    """The parts of all other fixes."""
    return {file: [one for one in parts if one.fix not in names] for file, parts in done.items()}


def _added(part: PatchPart, done: _Parts, files: SourceFiles) -> list[LeftToUser]:
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


def _without_workers(done: _Parts) -> dict[str, list[LeftToUser]]:
    """Take persistent workers from loaders without workers, which would refuse them. Why, by
    fix."""
    refused: dict[str, list[LeftToUser]] = {}
    for name, parts in done.items():
        try:
            calls.check_workers([one for part in parts for one in part.arguments])
        except PatchError as problem:
            taken = [part for part in parts if any(map(calls.needs_workers, part.arguments))]
            done[name] = [part for part in parts if part not in taken]
            for one in taken:
                left = LeftToUser(f"{name}:{one.line}", str(problem))
                refused.setdefault(one.fix, []).append(left)
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
