"""The results in a folder: what they are, how much room they take, and which may go."""

import os
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from stepscope.record.errors import BrokenRun, UsageError
from stepscope.store.folder import RUN_FILE, in_use, is_name, read_run, remove_result, write_run
from stepscope.store.json_file import read_json

PINNED_FILE: Final = "pinned"
"""Stands in a folder that `clean` leaves alone."""
_MARKERS: Final = {
    RUN_FILE: "run",
    "tune.json": "tune",
    "journal.jsonl": "tune",
    "batch.json": "batch",
    "bench.json": "bench",
    "request.json": "bench",
}
"""The file that tells the kind of a folder; the first that is there counts."""
_DAY_S: Final = 86_400


class StoredResult(Struct, frozen=True, kw_only=True):
    """One folder. None: it does not say."""

    name: str
    kind: str  # run, tune, batch or bench
    program: str | None
    arguments: tuple[str, ...] = ()
    started: str | None = None  # local time, ISO
    changed: float  # when something in it changed last, in seconds since 1970
    exit_code: int | None = None
    size_bytes: int
    pinned: bool
    under_way: bool


def stored_results(folder: Path) -> list[StoredResult]:
    """All of a folder, the newest first. Folders of others, and what cannot be read, are left
    out."""
    places = [one for one in folder.iterdir() if one.is_dir() and not one.is_symlink()]
    found = [_stored(one) for one in places]
    return sorted(filter(None, found), key=lambda one: -one.changed)


def _stored(folder: Path) -> StoredResult | None:
    marker = _marker(folder)
    if marker is None:
        return None
    about = _about(folder / marker)
    program, arguments = about.get("program"), about.get("argv")
    started, code = about.get("started"), about.get("exit_code")
    return StoredResult(
        name=folder.name,
        kind=_MARKERS[marker],
        program=program if isinstance(program, str) else None,
        arguments=tuple(map(str, arguments)) if isinstance(arguments, list) else (),
        started=started if isinstance(started, str) else None,
        changed=(folder / marker).stat().st_mtime,
        exit_code=code if isinstance(code, int) else None,
        size_bytes=sum(_sizes(folder)),
        pinned=(folder / PINNED_FILE).exists(),
        under_way=in_use(folder),
    )


def is_result(folder: Path) -> bool:
    """Whether it looks like one of ours."""
    return _marker(folder) is not None


def _marker(folder: Path) -> str | None:
    return next((name for name in _MARKERS if (folder / name).is_file()), None)


def _about(path: Path) -> dict[str, Any]:
    """What ran, as a result's document says it; empty where that cannot be read."""
    try:
        document = read_json(path)
    except (BrokenRun, OSError):  # a journal is no document, and a folder may vanish
        return {}
    if not isinstance(document, dict):
        return {}
    run = document.get("run")
    return run if isinstance(run, dict) else document


def _sizes(folder: Path) -> Iterable[int]:
    """Of every file below it, in bytes of disk."""
    for place, _, files in os.walk(folder):
        for file in files:
            try:
                yield os.lstat(os.path.join(place, file)).st_blocks * 512
            except OSError:
                continue


def old_results(
    results: Iterable[StoredResult], older_than_s: float, now: float | None = None
) -> list[StoredResult]:
    """Those that may go: neither pinned nor under way, and nothing in them changed for so long."""
    before = (time.time() if now is None else now) - older_than_s
    return [one for one in results if one.changed < before and not (one.pinned or one.under_way)]


def parse_age(text: str) -> float:
    """`30d`, `12h` or `2w` in seconds. Raises UsageError."""
    units = {"h": 3600, "d": _DAY_S, "w": 7 * _DAY_S}
    number, unit = text[:-1], text[-1:]
    if unit in units and number.isdecimal():
        return float(int(number) * units[unit])
    raise UsageError(f"--older-than {text}: use an age such as 12h, 30d or 8w")


def remove(folder: Path, name: str) -> None:
    """Remove a result that stepscope wrote. Raises UsageError if anything in it is not its own."""
    place = folder / name
    marker = _marker(place)
    if marker is None:
        raise UsageError(f"{place} is not a result of stepscope")
    remove_result(place, marker)


def pin(folder: Path, wanted: bool) -> None:
    """Have `clean` leave it alone, or no longer."""
    file = folder / PINNED_FILE
    file.write_text(f"{datetime.now():%Y-%m-%d}\n") if wanted else file.unlink(missing_ok=True)


def rename(folder: Path, name: str) -> Path:
    """Give a result another name in the folder it lies in. Raises UsageError."""
    if not name or not is_name(name) or name.startswith("."):
        raise UsageError(f"{name!r} cannot be the name of a folder")
    place = folder.with_name(name)
    if os.path.lexists(place):
        raise UsageError(f"{place} exists: choose another name")
    if in_use(folder):
        raise UsageError(f"{folder} is under way: rename it once it has ended")
    if (folder / RUN_FILE).is_file():
        run = read_run(folder)
        run.run.id = name
        write_run(folder, run)
    folder.rename(place)
    return place
