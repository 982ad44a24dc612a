"""A trial's final state besides its losses: models and optimizers, what it printed, and the files
it saved. Kept in the trial's folder for proofs to compare.
"""

import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final
from zlib import crc32

import msgspec

from stepscope.measure.trial.printed import Printed, read_printed
from stepscope.record.errors import BrokenRun
from stepscope.record.facts import StateFact, TensorState
from stepscope.record.kinds import EndPart
from stepscope.store.json_file import read_plain
from stepscope.store.json_lines import read_facts

PRINTED_FILE, SAVED_FILE = "printed.txt", "saved.json"
PICKLE: Final = "data.pkl"
"""The part of a torch.save file that is not a tensor."""
_MOST_PRINTED: Final = 1 << 19  # bytes
_MOST_FILES, _MOST_PARTS = 200, 20_000
_MOST_READ: Final = 256 << 20  # bytes, for formats without their own checksums
_BLOCK: Final = 1 << 20
_NOT_CONTENT: Final = frozenset(("version", "byteorder", ".format_version", ".storage_alignment"))

SavedFiles = dict[str, dict[str, int]]
"""Checksums of each file's parts, by path and part name."""


@dataclass(frozen=True, slots=True)
class FinalState:
    """How one trial ended; fields are empty if unknown."""

    tensors: Mapping[tuple[EndPart, str], TensorState] = field(default_factory=dict)
    printed: Printed = field(default_factory=lambda: Printed({}, {}))
    saved: SavedFiles = field(default_factory=dict)


def keep_final_state(folder: Path, output: Path, scratch: Path, since_ns: int) -> None:
    """Put what the program printed and saved into its trial's folder. `since_ns` is its start by
    the file system's clock. Raises OSError on a full disk."""
    if output.stat().st_size <= _MOST_PRINTED:
        (folder / PRINTED_FILE).write_bytes(output.read_bytes())
    (folder / SAVED_FILE).write_bytes(msgspec.json.encode(read_saved(scratch, since_ns)))


def read_final_state(folder: Path) -> FinalState:
    """The final state of this run folder's trial, without what cannot be read."""
    try:
        state = read_facts(folder / "facts.jsonl").last(StateFact)
        printed = _content(folder / PRINTED_FILE) or b""
        saved = msgspec.json.decode(_content(folder / SAVED_FILE) or b"{}", type=SavedFiles)
    except (BrokenRun, msgspec.DecodeError):
        return FinalState()
    tensors = {(one.part, one.name): one for one in (state.tensors if state else ())}
    return FinalState(tensors, read_printed(printed.decode(errors="replace")), saved)


def _content(path: Path) -> bytes | None:
    try:
        return read_plain(path)
    except FileNotFoundError:
        return None


def read_saved(scratch: Path, since_ns: int) -> SavedFiles:
    """The contents of files written since then: tensors saved by torch, safetensors or numpy, and
    the numbers in text (CSV, JSON, logs)."""
    found: SavedFiles = {}
    parts, left = 0, _MOST_READ
    for path, size in _written(scratch, since_ns):
        if len(found) >= _MOST_FILES or parts >= _MOST_PARTS:
            break
        try:
            with open(path, "rb") as file:
                content, read = _checksums(file, size, left)
        except (OSError, ValueError, RuntimeError, zipfile.BadZipFile):
            continue  # still being written, or not really of that format
        left -= read
        if content:
            found[os.path.relpath(path, scratch)] = content
            parts += len(content)
    return found


def _written(folder: Path, since_ns: int) -> Iterator[tuple[str, int]]:
    """Plain files and their sizes, ordered by path."""
    for here, folders, names in os.walk(folder):
        folders.sort()
        for path in (os.path.join(here, name) for name in sorted(names)):
            try:
                status = os.lstat(path)
            except OSError:
                continue
            if os.path.isfile(path) and not os.path.islink(path) and status.st_mtime_ns >= since_ns:
                yield path, status.st_size


def _checksums(file: IO[bytes], size: int, most: int) -> tuple[dict[str, int], int]:
    """A checksum per part, and how many bytes were read; empty for other formats."""
    start = file.read(8)
    if start[:4] == b"PK\x03\x04":  # torch.save, numpy.savez: these contain checksums
        with zipfile.ZipFile(file) as archive:
            entries = {entry.filename: entry.CRC for entry in archive.infolist()}
        torch = any(name.endswith(f"/{PICKLE}") for name in entries)
        inner = {name.partition("/")[2] if torch else name: one for name, one in entries.items()}
        return {
            name: one
            for name, one in inner.items()
            if name not in _NOT_CONTENT and not name.startswith(".data/")
        }, 0
    if size > most:
        return {}, 0
    if start[:6] == b"\x93NUMPY":
        file.seek(0)
        return {"array": _checksum(file, size)}, size
    if len(start) == 8 and file.name.endswith(".safetensors"):
        (length,) = struct.unpack("<Q", start)
        if length > size - 8:
            return {}, 0
        header = msgspec.json.decode(file.read(length), type=dict[str, _Stored])
        found = {}
        for name, stored in header.items():
            begin, end = stored.data_offsets
            if 0 <= begin <= end <= size - 8 - length:
                file.seek(8 + length + begin)
                found[name] = _checksum(file, end - begin)
        return found, size
    if size > _MOST_PRINTED:
        return {}, 0
    content = start + file.read()
    return ({} if b"\0" in content else _numbers(content.decode())), size


def _numbers(text: str) -> dict[str, int]:
    """A checksum for each place in the text, as in printed output. Counts are part of the name: a
    line written more or less often cannot be compared."""
    return {
        f"{form} #{at + 1} of {len(numbers)}": crc32("\n".join(numbers).encode())
        for (form, at), numbers in read_printed(text).numbers.items()
    }


class _Stored(msgspec.Struct):
    data_offsets: tuple[int, int] = (0, -1)  # `__metadata__` has none


def _checksum(file: IO[bytes], size: int) -> int:
    found = 0
    while size > 0 and (block := file.read(min(size, _BLOCK))):
        found, size = crc32(block, found), size - len(block)
    return found
