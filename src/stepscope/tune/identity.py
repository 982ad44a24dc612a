"""What the trials of one tune have in common: the program's sources, versions, machine, asks."""

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from stepscope.record.version import __version__

SCHEMA = "stepscope.tune-journal/1"
_PASSED_OVER = ("__pycache__", "node_modules", "site-packages", "dist-packages")
_MOST = 5000  # files


def identity(
    asked: Mapping[str, Any], cwd: Path, environ: Mapping[str, str], script: str | None
) -> dict[str, Any]:
    """Ready for JSON. `script` is the program's file; None for a module.

    `environ` is what trials run with: it decides which GPU they see.
    """
    return {
        "schema": SCHEMA,
        "asked": dict(asked),
        "made_with": {
            "stepscope": __version__,
            "python": sys.version.split()[0],
            "torch": _version("torch"),
            "gpu": _gpu(environ),
        },
        "sources": sources(cwd, script),
    }


def sources(cwd: Path, script: str | None) -> dict[str, str]:
    """Digests of the Python files under the working directory, and of the script wherever it is."""
    found = {}
    for path in _python_files(cwd):
        found[str(path.relative_to(cwd))] = _digest(path)
        if len(found) >= _MOST:
            break
    if script is not None and not (cwd / script).resolve().is_relative_to(cwd.resolve()):
        found[script] = _digest(cwd / script)
    return found


def _python_files(folder: Path) -> Iterator[Path]:
    """In a fixed order; hidden folders, environments and caches are passed over."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _PASSED_OVER
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
        )
        yield from (Path(place, name) for name in sorted(files) if name.endswith(".py"))


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return "unreadable"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu(environ: Mapping[str, str]) -> str | None:
    """The name of the GPU that trials will see first; None for none."""
    from stepscope.hardware.nvml import open_gpus
    from stepscope.hardware.visible import visible_index

    index = visible_index(environ)
    return next((gpu.facts()["name"] for gpu in open_gpus() if gpu.index == index), None)
