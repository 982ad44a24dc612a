"""What a run's recorded windows tell: the same analysis that any trace gets.

Kept beside the traces as `window.json`, since reading one takes a while.
"""

import json
from pathlib import Path
from typing import Any

from stepscope.analyze.timeline.document import SCHEMA, analyse
from stepscope.hardware.ceiling_cache import known_ceilings
from stepscope.record.errors import StepscopeError
from stepscope.trace.kineto import read_kineto

CACHE = "window.json"
Document = dict[str, Any]


def read_windows(folder: Path) -> Document:
    """`timeline`: the light window's analysis; `stacks`: modules and lines from the other one.

    Each is None where it was not recorded or cannot be read.
    """
    cache = folder / CACHE
    try:
        known = json.loads(cache.read_text())
        if isinstance(known, dict) and known.get("schema") == SCHEMA:
            return known
    except (OSError, ValueError):
        pass
    found = {
        "schema": SCHEMA,
        "timeline": _analysed(folder / "window.pt.trace.json.gz"),
        "stacks": _lines(_analysed(folder / "stacks.pt.trace.json.gz")),
    }
    if found["timeline"] is not None:
        try:
            cache.write_text(json.dumps(found))
        except OSError:
            pass
    return found


def device_use(timeline: Document | None) -> Document | None:
    """How long the device worked for a step, in ms (None without one), and on how many kernels.

    All its work in the window is counted, also what outlasted the last step's mark.
    """
    if timeline is None:
        return None
    steps = timeline["steps"]["count"]
    whole = [device["whole_ns"] for device in timeline["devices"]]
    busy = max((one["wall"] - one["idle"] for one in whole), default=None)
    return {
        "busy_ms": busy / steps / 1e6 if busy is not None else None,
        "kernels": timeline["launch"]["kernels"] / steps,
    }


def _analysed(trace: Path) -> Document | None:
    if not trace.is_file():
        return None
    try:
        return analyse(read_kineto(trace, processes=1), known_ceilings())
    except StepscopeError:
        return None


def _lines(document: Document | None) -> Document | None:
    """What only a recording with stacks tells; its times are slowed by recording them."""
    if document is None:
        return None
    idle = document["devices"][0]["idle"] if document["devices"] else {}
    return {
        "steps": document["steps"]["count"],
        "by": {key: document["by"][key] for key in ("module", "line")},
        "host": {"lines": (document["host"] or {}).get("lines") or []},
        "idle_places": {cause: one["places"] for cause, one in idle.items() if one["places"]},
    }
