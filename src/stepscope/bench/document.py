"""The document of a grid: what `--json` hands out, and every renderer draws."""

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.bench.request import Request
from stepscope.bench.speed import noise
from stepscope.bench.summary import Ceilings, by_point, summarize
from stepscope.record.version import __version__

SCHEMA = "stepscope.bench/1"


def document(
    request: Request,
    records: Sequence[Mapping[str, Any]],
    ceilings: Ceilings,
    command: str,
    started: str,
    notes: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """All of it; `more` are the parts of a study or another command."""
    from stepscope.hardware.machine import describe

    machine = describe()
    torch = machine["torch"] or {}
    return {
        "schema": SCHEMA,
        "machine": machine,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.get("version"),
            "stepscope": __version__,
        },
        "command": command,
        "started": started,
        "request": request.to_json(),
        "noise_floor": noise(by_point(records)),
        "points": summarize(records, request, ceilings),
        "notes": list(notes),
        **more,
    }


def made_with(devices: Sequence[str]) -> dict[str, Any]:
    """What results must have in common to stand in one table: stepscope, torch, each device."""
    import os

    from stepscope.hardware.ceilings import device_key
    from stepscope.hardware.visible import visible_index

    gpu = visible_index(os.environ) if "cuda" in devices else None
    keys = {device: device_key(device, gpu if device == "cuda" else None) for device in devices}
    return {"stepscope": __version__, "python": platform.python_version(), **keys}
