"""Runs of the programs as small archives: what findings are made from, without the rest.

The window's trace is kept without marks and what no one reads, and where that is still too
large, for fewer steps; the second trace, whose analysis `window.json` has, is left out. Folders
and devices of the recording machine are renamed.
"""

import gzip
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ARCHIVES = HERE / "recorded"
LARGEST = 80_000
"""Bytes of an archive."""
_TRACE = "window.pt.trace.json"
_LEFT_OUT = ("stacks.pt.trace.json.gz", f"{_TRACE}.gz", "lock", "python.txt", "memory-cpu.bin")
_UNREAD = ("Ev Idx", "Record function id", "Fwd thread id", "Concrete Inputs", "Input Strides")
_TEXTS = (".json", ".jsonl")
_PACKAGES = re.compile(r"(/[^\s\"]*?)/lib/python3\.\d+/(?:site|dist)-packages")
_TOOLS = re.compile(r"(/[^\s\"]*?)/bin/py-spy")
_DEVICE = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]+)+")


def record(run: Path, archive: Path) -> None:
    """Write a run folder as an archive of at most 80 kB."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    for steps in (6, 3, 2, 1):
        _write(run, archive, steps)
        if archive.stat().st_size <= LARGEST:
            return
    raise SystemExit(f"{archive} has {archive.stat().st_size} bytes, more than {LARGEST}")


def unpack(archive: Path, folder: Path) -> Path:
    """The archive as a run folder again."""
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    trace = folder / _TRACE
    if trace.exists():
        with gzip.open(f"{trace}.gz", "wb", compresslevel=1) as file:
            file.write(trace.read_bytes())
        trace.unlink()
    return folder


def _write(run: Path, archive: Path, steps: int) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_LZMA) as packed:
        for path in sorted(run.iterdir()):
            if path.name not in _LEFT_OUT and path.is_file():
                content = path.read_bytes()
                if path.suffix in _TEXTS:
                    content = _renamed(content.decode(), run).encode()
                packed.writestr(_entry(path.name), content)
        trace = run / f"{_TRACE}.gz"
        if trace.exists():
            with gzip.open(trace) as file:
                slim = _slim(json.load(file), steps)
            packed.writestr(_entry(_TRACE), _renamed(json.dumps(slim, separators=(",", ":")), run))


def _entry(name: str) -> zipfile.ZipInfo:
    """With the same date each time, so that the same run gives the same bytes."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_LZMA
    return entry


def _slim(trace: dict[str, Any], steps: int) -> dict[str, Any]:
    events = [event for event in trace["traceEvents"] if event.get("ph") != "i"]
    marks = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if str(event.get("name", "")).startswith("ProfilerStep#")
        and event.get("cat") == "user_annotation"
    )
    if len(marks) > steps:
        end = marks[steps - 1][1]
        events = [event for event in events if event.get("ph") == "M" or event["ts"] < end]
    for event in events:
        for key in _UNREAD:
            event.get("args", {}).pop(key, None)
    return {**trace, "traceEvents": events}


def _renamed(text: str, run: Path) -> str:
    places = {
        str(run.resolve()): "/home/me/run",
        str(HERE.parent.parent): "/home/me/project",
        str(Path(sys.prefix).resolve()): "/home/me/venv",
        sys.prefix: "/home/me/venv",
        sys.base_prefix: "/usr",
    }
    for found in (*_PACKAGES.findall(text), *_TOOLS.findall(text)):
        places.setdefault(found, "/home/me/venv")
    for place in sorted(places, key=len, reverse=True):
        if len(place) > len("/usr"):
            text = text.replace(place, places[place])
    return _DEVICE.sub("GPU-0", text)
