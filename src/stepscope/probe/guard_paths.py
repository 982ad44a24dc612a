"""Ways by which a program would come from the scratch copy to the original, led back."""

import functools
import os
import sys
from typing import Any

from stepscope.probe.guard_zone import Zone, under
from stepscope.probe.patches import Patches


def resolve_in_scratch(zone: Zone) -> None:
    """Have `os.path.realpath`, and so `Path.resolve`, not lead through our links.

    `Path("data").resolve()` is in the working directory also where the data are only linked.
    """
    resolved = os.path.realpath

    @functools.wraps(resolved)
    def realpath(filename: Any, **strict: Any) -> Any:
        found = resolved(filename, **strict)
        if isinstance(found, str) and under(found, zone.original):
            given = os.path.abspath(os.fspath(filename))
            if under(given, zone.scratch):
                return os.path.normpath(zone.scratch + found[len(zone.original) :])
        return found

    Patches().set(os.path, "realpath", realpath)


def take_from_scratch(zone: Zone) -> None:
    """Have everywhere that Python looks for modules of the original name the scratch copy.

    So the program's own packages come from there also where they are installed in place.
    """
    sys.path[:] = [_mapped(entry, zone) for entry in sys.path]
    given = os.environ.get("PYTHONPATH")
    if given:
        entries = given.split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(_mapped(entry, zone) for entry in entries)
    for name, module in list(sys.modules.items()):
        places = getattr(module, "MAPPING", None)
        if name.startswith("__editable__") and isinstance(places, dict):
            for package, place in places.items():
                places[package] = _mapped(str(place), zone)


def _mapped(entry: str, zone: Zone) -> str:
    """A folder of the original as the scratch copy has it; installed packages stay elsewhere."""
    if not os.path.isabs(entry) or "-packages" in entry or under(entry, sys.prefix):
        return entry
    real = os.path.realpath(entry)
    if not under(real, zone.original):
        return entry
    there = os.path.join(zone.scratch, os.path.relpath(real, zone.original))
    return os.path.normpath(there) if os.path.exists(there) else entry
