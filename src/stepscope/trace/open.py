"""Opens a recording of any kind, told apart by what is in it rather than by its name."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.timeline import Timeline
from stepscope.trace.bytes_in import check_file, open_bytes
from stepscope.trace.kineto import read_kineto

SQLITE = b"SQLite format 3\0"
ENDINGS = (".json", ".json.gz", ".sqlite", ".nsys-rep", ".qdrep")
_ARCHIVES = {
    b"PK\x03\x04": "a zip archive",
    b"(\xb5/\xfd": "compressed with zstd",
    b"\xfd7zXZ": "compressed with xz",
    b"BZh": "compressed with bzip2",
    b"7z\xbc\xaf": "a 7z archive",
}


def open_trace(path: Path | str, *, processes: int | None = None) -> Timeline:
    """The timeline of one recording: Kineto or Chrome JSON, plain or gzip, or Nsight Systems.

    A folder must hold exactly one. None processes: as many as the file's size is worth.
    """
    path = Path(path)
    if path.is_dir():
        path = _only_one(path)
    check_file(path)
    if path.suffix in (".nsys-rep", ".qdrep"):
        return _from_report(path)
    head = _head(path)
    if head.startswith(SQLITE):
        return _from_export(path)
    for start, what in _ARCHIVES.items():
        if head.startswith(start):
            raise StepscopeError(f"{path}: is {what}: unpack it first")
    return read_kineto(path, processes=processes)


def traces_in(folder: Path) -> list[Path]:
    """The recordings of a folder, going by their names."""
    try:
        found = [p for p in folder.iterdir() if p.name.endswith(ENDINGS) and p.is_file()]
    except OSError as error:
        raise StepscopeError(f"{folder}: {error.strerror or error}") from error
    if not found:
        raise UsageError(f"{folder}: no recording in this folder ({', '.join(ENDINGS)})")
    return sorted(found)


def _only_one(folder: Path) -> Path:
    found = traces_in(folder)
    if len(found) > 1:
        raise UsageError(f"{folder}: holds {len(found)} recordings; name the one to open")
    return found[0]


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            plain = file.read(64)
        with open_bytes(path) as source:
            text = source.window(0, 64)
    except OSError as error:
        raise StepscopeError(f"{path}: {error.strerror or error}") from error
    if text.startswith(SQLITE) and text != plain:
        raise StepscopeError(f"{path}: is a compressed SQLite file: unpack it first (gunzip)")
    return plain


def _from_report(path: Path) -> Timeline:
    from stepscope.trace.nsys_report import export_report

    with TemporaryDirectory(prefix="stepscope-") as folder:
        return replace(_from_export(export_report(path, Path(folder))), source=str(path))


def _from_export(path: Path) -> Timeline:
    from stepscope.trace.nsys import read_nsys

    return read_nsys(path)
