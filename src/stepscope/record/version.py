"""The version, kept here so that no layer has to import the package's top level for it, and what
other packages offer this one. Imported into the user's program, so without msgspec.
"""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__version__ = "0.1.0"


def entry_points(group: str) -> "list[EntryPoint]":
    """What installed packages offer as a group, by name.

    The group is looked for in their files before importlib.metadata is imported.
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
