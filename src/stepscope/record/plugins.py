"""What other packages bring: entry points of a group."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def entry_points(group: str) -> "list[EntryPoint]":
    """Those of installed packages, by name.

    importlib.metadata takes 20 ms to import: only where some package names the group.
    """
    heading = f"[{group}]".encode()
    if not any(_names(heading, folder or os.curdir) for folder in sys.path):
        return []
    from importlib import metadata

    return sorted(metadata.entry_points(group=group), key=lambda point: point.name)


def _names(heading: bytes, folder: str) -> bool:
    """Whether a package of this folder has such entry points."""
    try:
        packages = [one.path for one in os.scandir(folder) if one.name.endswith("-info")]
    except OSError:  # no folder: an archive at most
        return os.path.isfile(folder)
    for package in packages:
        try:
            with open(os.path.join(package, "entry_points.txt"), "rb") as file:
                if heading in file.read():
                    return True
        except OSError:
            continue
    return False
