"""SQLite opens what it only reads for writing, too; files refused it then reads."""

import os
from typing import Any

from stepscope.probe.guard_zone import Zone

_SMALL_BYTES = 256 << 20
"""A linked database up to here is copied when it is opened."""


def database_path(given: Any) -> str | None:
    """The file behind an argument of sqlite3.connect; None where it is not written."""
    path = os.fsdecode(given)
    if path.startswith("file:"):
        from urllib.parse import parse_qs, unquote, urlsplit

        parts = urlsplit(path)
        asked = parse_qs(parts.query)
        if asked.get("mode", [""])[0] in ("ro", "memory") or "immutable" in asked:
            return None
        path = unquote(parts.path)
    return None if path in ("", ":memory:") else path


def is_kept_apart(path: str, zone: Zone) -> bool:
    """Whether a file that is there is not to be written: the user's, and large or elsewhere."""
    try:
        large = os.stat(path).st_size > _SMALL_BYTES
    except OSError:
        return False
    return not zone.contains(zone.real(path)) and (
        large or not zone.contains(os.path.abspath(path))
    )
