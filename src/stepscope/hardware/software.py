"""What is installed beside us, found without importing any of it."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Final

TOOLS: Final = ("nsys", "ncu", "py-spy", "g++")


def package_version(name: str) -> str | None:
    """Version of an installed distribution, None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cuda_build(version_py: str) -> str | None:
    """The CUDA version in the text of torch's `version.py`; None for a CPU build."""
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", version_py, re.MULTILINE)
    return found[1] if found else None


def torch_build() -> dict[str, Any] | None:
    """Version of torch and the CUDA version it was built for; None without torch."""
    version = package_version("torch")
    try:
        spec = importlib.util.find_spec("torch")
    except ValueError:
        spec = None
    if version is None or spec is None or not spec.origin:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except (OSError, ValueError):
        text = ""
    return {"version": version, "cuda": cuda_build(text)}


def find_tool(name: str) -> str | None:
    """Where a program is: on PATH, or beside our Python in an environment not activated."""
    return shutil.which(name) or shutil.which(name, path=os.path.dirname(sys.executable))
