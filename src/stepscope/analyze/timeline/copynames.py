"""What the name of a copy says: its direction and what host memory it used."""

import re
from typing import NamedTuple

_WAY = re.compile(r"(HtoD|DtoH|DtoD|PtoP|HtoH|HtoA|AtoH|AtoA|AtoD|DtoA)", re.IGNORECASE)
_SIDES = re.compile(r"\(\s*([A-Za-z]{1,20})[A-Za-z ]{0,40}->\s*([A-Za-z]{1,20})")
_WAYS = {
    way.lower(): way
    for way in ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA")
}
_SPELLED = {
    ("host", "device"): "HtoD",
    ("device", "host"): "DtoH",
    ("device", "device"): "DtoD",
    ("host", "host"): "HtoH",
    ("peer", "peer"): "PtoP",
}
_HOST = ("pageable", "pinned")


class CopyName(NamedTuple):
    """Direction (HtoD, DtoH, DtoD, PtoP, …, or "unknown") and memory."""

    direction: str
    memory: str  # "pageable" or "pinned" host memory, "device", or "unknown"


def read_copy_name(name: str) -> CopyName:
    """As Kineto writes it: "Memcpy HtoD (Pageable -> Device)", or with only Host and Device."""
    match, sides = _WAY.search(name), _SIDES.search(name)
    ends = (sides[1].lower(), sides[2].lower()) if sides else ("", "")
    direction = _WAYS.get(match[1].lower()) if match else _SPELLED.get(ends)
    host = next((end for end in ends if end in _HOST), None)
    if direction in ("DtoD", "PtoP", "AtoA", "AtoD", "DtoA"):
        return CopyName(direction, "device")
    return CopyName(direction or "unknown", host or "unknown")
