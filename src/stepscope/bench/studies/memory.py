"""What each technique saves of a model's memory, and how large a batch it makes room for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from stepscope.bench import child
from stepscope.bench.request import Request
from stepscope.bench.studies.kept import Kept, Measure, Tell
from stepscope.bench.studies.one_model import subject
from stepscope.bench.studies.technique_rows import TechniqueRows
from stepscope.bench.studies.techniques import BASE, SINGLE, asked, together
from stepscope.record.errors import UsageError

BATCH_LIMIT: Final = 65_536
_SEARCH_S: Final = 180.0
"""For the search of one technique."""


def run(
    request: Request,
    folder: Path,
    tell: Tell,
    *,
    measure: Measure = child.measure,
    seconds: float = _SEARCH_S,
) -> dict[str, Any]:
    """The study as a document; a row for each technique, all that apply together last.

    Raises UsageError for a request it cannot answer.
    """
    about = subject(request)
    if len(request.devices) != 1:
        raise UsageError("--study memory takes one device: --device cuda")
    device = request.devices[0]
    if device == "cpu" and about.settings.get("memory_limit_gib") is None:
        raise UsageError("--study memory on the CPU needs --memory-limit-gib: it fills the memory")
    limit = about.settings.pop("batch_limit", None) or BATCH_LIMIT
    limit = min(limit, about.settings.get("samples") or limit)
    if limit < about.batch:
        raise UsageError(
            f"--study memory begins at batch {about.batch}, above its limit of {limit}"
        )
    bench = TechniqueRows(
        about, device, limit, seconds, Kept(folder, measure, request.timeout_s), tell
    )
    rows = [bench.row(technique) for technique in (BASE, *SINGLE, *asked(request.variants))]
    held = {row["technique"] for row in rows if row["applies"]}
    combined = together([one for one in SINGLE if one.name in held])
    if combined is not None:
        rows.append(bench.row(combined))
    first = rows[0]["peak_memory_bytes"]
    for row in rows:
        row["of_first"] = row["peak_memory_bytes"] / first if _both(row, first) else None
    return {
        "name": "memory",
        "model": about.model,
        "batch": about.batch,
        "device": device,
        "device_name": bench.device_name,
        "memory_limit_gib": about.settings.get("memory_limit_gib"),
        "batch_limit": limit,
        "settings": about.settings,
        "rows": rows,
        "notes": [],
    }


def _both(row: Mapping[str, Any], first: float | None) -> bool:
    return bool(row["peak_memory_bytes"] and first)
