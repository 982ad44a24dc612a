"""Run folders: creating, finding, locking and reading them, and checking their request."""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from stepscope.record.errors import BrokenRun, UsageError
from stepscope.record.problems import ProblemKind
from stepscope.record.row_log import RANKS_FOLDER
from stepscope.record.run import RunRecord
from stepscope.store.json_file import read_finite_json, write_json

RUNS_FOLDER = ".stepscope"
RUN_FILE = "run.json"
_IN_USE = "{} is in use by another run: choose another with --out"
_OURS = re.compile(
    r"lock|ranks|(run|window|sources|memory-\w+|tune|batch|bench|request)\.json|(facts|journal|records)\.jsonl"
    r"|(rows|sites|samples|clock-[\d-]+)\.npy|(window|stacks)\.pt\.trace\.json(\.gz)?(\.part)?"
    r"|(python|output|memory-marks)\.txt|memory\.memray|report\.html|stepscope\.patch|\..*\.part"
    r"|trials|processes|study|scratch|caches|pinned"
)
"""Everything that may stand at the top of a folder of ours."""
_HEAD = 1 << 16  # bytes: the schema is among the first fields


def create_folder(out: Path | None, force: bool, cwd: Path, prefix: str = "") -> Path:
    """A fresh folder: `out`, or a new one under ./.stepscope named prefix and id.

    Raises UsageError.
    """
    folder = out if out is not None else cwd / RUNS_FOLDER
    try:
        if out is None:
            folder.mkdir(exist_ok=True)
            ignore = folder / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
            folder = _fresh(folder, prefix)
        elif folder.exists():
            _clear(folder, force)
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except PermissionError:
        raise UsageError(f"cannot write to {folder}: choose another with --out") from None
    except OSError as problem:
        why = problem.strerror
        raise UsageError(f"cannot use {folder}: {why}; choose another with --out") from None
    return folder


def _fresh(runs: Path, prefix: str) -> Path:
    """A folder with a unique id."""
    while True:
        with suppress(FileExistsError):
            folder = runs / f"{prefix}{new_id()}"
            folder.mkdir()
            return folder


def new_id() -> str:
    """A short id that sorts by time: month, day, hour, minute and three random digits."""
    return f"{datetime.now():%m%d-%H%M}-{os.urandom(2).hex()[:3]}"


def _clear(folder: Path, force: bool) -> None:
    """Clear an existing folder, or say why not."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file: choose a folder with --out")
    if not any(folder.iterdir()):
        return
    if in_use(folder):
        raise UsageError(_IN_USE.format(folder))
    if not (folder / RUN_FILE).exists():
        raise UsageError(f"{folder} exists and is not a run folder: choose another with --out")
    if not force:
        raise UsageError(
            f"{folder} already has a run: replace it with --force or choose another with --out"
        )
    remove_result(folder, RUN_FILE)


def remove_result(folder: Path, marker: str) -> None:
    """Remove a folder that we wrote: its marker has our schema and everything in it has a name of
    ours. Otherwise raises UsageError and changes nothing."""
    try:
        with (folder / marker).open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        head = b""
    if not re.search(rb'"schema": ?"stepscope\.', head):
        raise UsageError(
            f"{folder / marker} was not written by stepscope, so --force leaves {folder} alone:"
            " choose another with --out"
        )
    if foreign := sorted(one.name for one in folder.iterdir() if not _OURS.fullmatch(one.name)):
        raise UsageError(
            f"{folder} also holds {foreign[0]}, which stepscope did not write, so --force leaves it"
            " alone: choose another with --out"
        )
    shutil.rmtree(folder)


def lock_folder(folder: Path) -> int:
    """Mark a folder as in use until this process ends. Returns the lock's descriptor."""
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise UsageError(_IN_USE.format(folder)) from None
    return fd


def in_use(folder: Path) -> bool:
    """Whether a run is being written there."""
    try:
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def find_run(name: str | None, cwd: Path) -> Path:
    """The folder of a run given by path or id; None: the last one. Raises UsageError."""
    runs = [one for one in (cwd / RUNS_FOLDER).glob(f"*/{RUN_FILE}") if one.is_file()]
    if name is None:
        if not runs:
            raise UsageError(f"no runs in ./{RUNS_FOLDER} yet. Start one: stepscope run train.py")
        return max(runs, key=lambda path: path.stat().st_mtime_ns).parent
    for folder in (Path(name), cwd / RUNS_FOLDER / name):
        if (folder / RUN_FILE).is_file():
            return folder
    if Path(name).is_dir():
        raise UsageError(f"{name} is not a run folder (no {RUN_FILE})")
    matches = [path.parent for path in runs if name in path.parent.name]
    if len(matches) == 1:
        return matches[0]
    raise UsageError(f"no run {name}: give a run folder or an id from ./{RUNS_FOLDER}")


_RANK = re.compile(r"(\d{1,6})(?:\.(\d{1,4}))?")


class RankFolder(NamedTuple):
    """Where a rank was observed: the last time, if it was started several times."""

    rank: int
    folder: Path
    restarts: int


def rank_folders(run: Path) -> list[RankFolder]:
    """Those of a run's ranks, in order of rank; none for a program of one process."""
    found: dict[int, RankFolder] = {}
    try:
        inside = [one for one in (run / RANKS_FOLDER).iterdir() if one.is_dir()]
    except OSError:
        return []
    for folder in inside:
        name = _RANK.fullmatch(folder.name)
        if name is not None:
            one = RankFolder(int(name[1]), folder, int(name[2] or 0))
            found[one.rank] = max(one, found.get(one.rank, one), key=lambda known: known.restarts)
    return [found[rank] for rank in sorted(found)]


def write_run(folder: Path, run: RunRecord) -> None:
    """Write run.json whole or not at all. Secrets in it are masked."""
    from stepscope.record.privacy import masked_values  # its patterns take 4 ms to make

    write_json(folder / RUN_FILE, masked_values(run.to_json(), but=frozenset(("id",))))


def read_run(folder: Path) -> RunRecord:
    """Read run.json. Raises BrokenRun."""
    path = folder / RUN_FILE
    try:
        data = read_finite_json(path)
    except FileNotFoundError:
        raise BrokenRun(f"cannot read {path}: no such file") from None
    try:
        if not str(data["schema"]).startswith("stepscope.run/"):
            raise BrokenRun(f"{path} was not written by stepscope")
        if problems := data["run"].get("problems"):
            data["run"]["problems"] = [  # version 1 kept them as sentences
                {"kind": ProblemKind.OTHER, "detail": one} if isinstance(one, str) else one
                for one in problems
            ]
        run = RunRecord.from_json(data)
        if not is_name(run.run.id or "run"):
            raise ValueError("Expected a name - at `$.run.id`")
        return run
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as problem:
        raise BrokenRun(f"{path} is not a stepscope run: {problem}") from None


def is_name(text: str) -> bool:
    """Whether it is a valid file name that cannot leave its folder."""
    return text not in (".", "..") and not {"/", "\0"} & {*text} and len(os.fsencode(text)) < 240


_LONGEST = 60


def request_difference(then: Mapping[str, object], now: Mapping[str, object]) -> str | None:
    """The first difference between `now` and what was written, in a few words, or None."""
    for name, value in json.loads(json.dumps(now)).items():
        if then.get(name) != value:
            return f"{name}: {_short(then.get(name))}, now {_short(value)}"
    return None


def _short(value: object) -> str:
    if isinstance(value, list):
        value = ", ".join(str(v["label"]) if isinstance(v, dict) else str(v) for v in value)
    text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
