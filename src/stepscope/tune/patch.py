"""The accepted fixes as a unified diff of the user's own files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.fixes.base import Fix
from stepscope.fixes.catalogue import parse
from stepscope.tune import patch_calls
from stepscope.tune.patch_diff import apply_to as apply_to
from stepscope.tune.patch_diff import diff
from stepscope.tune.patch_files import Files
from stepscope.tune.patch_located import Left, Part, located
from stepscope.tune.patch_source import PatchError, Source, applied


@dataclass(frozen=True, slots=True)
class EditDone:
    """One edit that the diff makes."""

    fix: str
    file: str
    """From the working directory."""
    line: int
    """As the file was."""
    words: str


@dataclass(frozen=True, slots=True)
class Patch:
    """What can be written into the source, and what is left to the user."""

    text: str | None
    """The diff, for `git apply` and `patch -p1`; None where no edit could be located."""
    edits: tuple[EditDone, ...] = ()
    by_hand: tuple[tuple[str, str], ...] = ()
    """Fixes, each with what to do."""


def write_patch(
    cwd: Path,
    fixes: Sequence[str],
    applied_fixes: Iterable[Mapping[str, Any]],
    seen: Mapping[str, Any],
) -> Patch:
    """The patch for fixes, from what a trial with them says of where each took hold.

    `seen` is the document of a run of the program as it is: files must be what they were then.
    """
    files = Files(cwd, seen)
    took_hold = {str(one["name"]): one for one in applied_fixes}
    done: dict[str, list[Part]] = {}
    by_hand: list[tuple[str, str]] = []
    for fix, value in parse(fixes):
        found = located(fix, value, took_hold.get(fix.name, {}), files)
        left = [one for one in found if isinstance(one, Left)]
        for part in found:
            if isinstance(part, Part):
                left += _added(part, done, files)
        if left or not found:
            by_hand.append((fix.name, _words(fix, value, left)))
    by_hand += _without_workers(done)
    text = "".join(
        diff(name, files.source(name).text, _rendered(files.source(name), parts))
        for name, parts in sorted(done.items())
        if parts
    )
    edits = [
        EditDone(part.fix, part.file, part.line, part.words)
        for parts in done.values()
        for part in parts
    ]
    return Patch(text or None, tuple(edits), tuple(by_hand))


def _added(part: Part, done: dict[str, list[Part]], files: Files) -> list[Left]:
    """Take a part in, if the file still compiles with it."""
    parts = [*done.get(part.file, ()), part]
    try:
        compile(_rendered(files.source(part.file), parts), part.file, "exec", dont_inherit=True)
    except (PatchError, SyntaxError, ValueError) as problem:
        why = str(problem) if isinstance(problem, PatchError) else "it would not compile"
        return [Left(f"{part.file}:{part.line}", why)]
    done[part.file] = parts
    return []


def _rendered(source: Source, parts: Iterable[Part]) -> str:
    wanted = [one for part in parts for one in part.arguments]
    changes = [one for part in parts for one in part.changes]
    together = dict.fromkeys([*changes, *patch_calls.changes(source, wanted)])
    return applied(source.text, together)


def _without_workers(done: dict[str, list[Part]]) -> list[tuple[str, str]]:
    """Take out persistent workers where there are none: a loader would refuse them."""
    refused = []
    for name, parts in done.items():
        try:
            patch_calls.check_workers([one for part in parts for one in part.arguments])
        except PatchError as problem:
            taken = [part for part in parts if part.fix == "persistent"]
            done[name] = [part for part in parts if part.fix != "persistent"]
            refused += [(one.fix, f"{one.words} ({name}:{one.line}: {problem})") for one in taken]
    return refused


def _words(fix: Fix, value: Any, left: list[Left]) -> str:
    words = fix.edit(value, "").words
    reasons = "; ".join(f"{one.place}: {one.why}" for one in left)
    return f"{words} ({reasons})" if reasons else words
