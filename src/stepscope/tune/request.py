"""A request to `stepscope tune`, and the folder it works in."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from stepscope.launch.program import Program
from stepscope.measure.journal import JOURNAL_FILE
from stepscope.record.errors import UsageError
from stepscope.record.privacy import masked_arguments
from stepscope.store import folder as folders

ALLOW = ("exact", "numeric", "semantic")
OBJECTIVES = ("throughput", "memory", "energy")


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """Everything that decides which trials run and what is kept."""

    program: Program
    budget_s: float
    allow: str = "numeric"  # the coarsest kind of fix allowed, one of ALLOW
    only: tuple[str, ...] = ()  # names, or name=value; empty: every fix that may help
    skip: tuple[str, ...] = ()
    objective: str = "throughput"
    steps: int | None = None  # per trial; None: by the baseline's pace
    seeds: int = 3  # of the proof
    on: str | None = None  # the device trials run on; None: the program's own choice
    allow_writes: bool = False
    unguarded: bool = False
    price_per_hour: float | None = None
    prove: bool = False
    """Only go on with the proof of a tune that ended; `budget_s` is then for that alone."""

    def settings(self) -> "TuneSettings":
        """As stored in journals and documents, with secrets masked."""
        own = {one: getattr(self, one) for one in TuneSettings.__struct_fields__ if one != "argv"}
        argv = tuple(masked_arguments(self.program.arguments))
        return TuneSettings(**own | {"program": self.program.name, "argv": argv})


class TuneSettings(Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The request, ready for JSON."""

    allow: str = "numeric"
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    objective: str = "throughput"
    steps: int | None = None
    seeds: int = 3
    on: str | None = None
    allow_writes: bool = False
    unguarded: bool = False
    program: str = ""
    argv: tuple[str, ...] = ()
    budget_s: float | None = None


def check_fix_names(words: Sequence[str], option: str) -> tuple[str, ...]:
    """Fixes given by name or with a value, possibly several separated by commas. Raises UsageError
    for an unknown fix."""
    from stepscope.fixes.registry import fix_named

    found: list[str] = []
    for word in (part.strip() for text in words for part in text.split(",")):
        if not word:
            raise UsageError(f"--{option} needs names of fixes: see stepscope fixes")
        name, equals, value = word.partition("=")
        one = fix_named(name)
        if equals:
            one.parse(value)
        found.append(word)
    return tuple(dict.fromkeys(found))


DOCUMENT_FILE, PATCH_FILE = "tune.json", "stepscope.patch"


def open_tune_folder(out: Path | None, resume: bool, force: bool, cwd: Path) -> Path:
    """The folder to work in. Raises UsageError if there is no tune to resume, or another is in the
    way."""
    if resume and out is not None:
        for folder in (out, cwd / folders.RUNS_FOLDER / out):  # by path or id
            if (folder / JOURNAL_FILE).is_file():
                return folder
        raise UsageError(f"{out} holds no tune to resume: pass the folder that `tune` printed")
    if out is not None and (out / JOURNAL_FILE).is_file():
        if folders.in_use(out):
            raise UsageError(f"{out} is in use by another tune: choose another folder with --out")
        if not force:
            raise UsageError(
                f"{out} holds a tune: --resume {out} continues it, --force replaces it"
            )
        folders.remove_result(out, JOURNAL_FILE)
    return folders.create_folder(out, force, cwd, "tune-")
