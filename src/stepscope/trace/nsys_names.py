"""Names in the words that PyTorch's own profiler uses, so that analyses need not know the tool."""

import re

from stepscope.trace.nsys_tables import Database

_VERSION = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
_COPIES = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "HtoD",  # unified memory that moved by itself
    12: "DtoH",
    13: "DtoD",
}
_MEMORIES = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
}
_SYNCS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_SIDES = {"D": "Device", "A": "Array"}
_UNKNOWN = "Unknown"


def call_name(name: str) -> str:
    """`cudaLaunchKernel` for `cudaLaunchKernel_v7000`: without version and stream mode."""
    return _VERSION.sub("", name)


def memory_words(database: Database) -> dict[int, str]:
    """The kinds of memory by the number this export gives them."""
    labels = database.records("ENUM_CUDA_MEM_KIND", ["id", "label"])
    said = {r["id"]: r["label"] for r in labels if isinstance(r["label"], str)}
    return said or _MEMORIES


def copy_name(kind: int, source: int, target: int, memories: dict[int, str]) -> str:
    """Like `Memcpy HtoD (Pageable -> Device)`."""
    direction = _COPIES.get(kind, _UNKNOWN)
    sides = [
        memories.get(memory, _SIDES.get(side, _UNKNOWN))
        for memory, side in ((source, direction[0]), (target, direction[-1]))
    ]
    return f"Memcpy {direction} ({sides[0]} -> {sides[1]})"


def set_name(memory: int, memories: dict[int, str]) -> str:
    """Like `Memset (Device)`."""
    return f"Memset ({memories.get(memory, _UNKNOWN)})"


def sync_name(kind: int) -> str:
    """Like `Stream Wait Event`."""
    return _SYNCS.get(kind, _UNKNOWN)
