"""What a Kineto trace says about itself beside its events."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from stepscope.record.timeline import DeviceInfo

_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
MOST_DEVICES = 1024


@dataclass(frozen=True, slots=True)
class About:
    """None where the trace does not say."""

    whole: bool  # the text was complete JSON
    base_ns: int = 0  # what the writer took off every time
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    devices: list[DeviceInfo] = field(default_factory=list)


def read_about(outside: bytes) -> About:
    """From a trace's text without its events: `{…, "traceEvents": [], …}`."""
    text = outside.decode("utf-8-sig", "replace")
    document = _parsed(text)
    whole = document is not None
    if document is None and (events := _EVENTS.search(text)):
        document = _parsed(text[: events.end()] + "]}")
    if not isinstance(document, dict):
        return About(whole)
    distributed = document.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    backend = distributed.get("backend")
    devices = document.get("deviceProperties")
    devices = devices if isinstance(devices, list) else []
    return About(
        whole,
        _whole_number(document.get("baseTimeNanoseconds")) or 0,
        _whole_number(distributed.get("rank")),
        _whole_number(distributed.get("world_size")),
        backend if isinstance(backend, str) else None,
        [_device(n, d) for n, d in enumerate(devices[:MOST_DEVICES]) if isinstance(d, dict)],
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None


def _whole_number(value: Any) -> int | None:
    """A number of at most 64 bits, also where it is written as text."""
    try:
        number = int(value) if isinstance(value, int | str) else None
    except ValueError:
        return None
    return number if number is not None and abs(number) < 2**63 else None


def _device(index: int, properties: dict[str, Any]) -> DeviceInfo:
    def number(name: str) -> int | None:
        return _whole_number(properties.get(name))

    name, major, minor = properties.get("name"), number("computeMajor"), number("computeMinor")
    given = number("id")
    return DeviceInfo(
        index=index if given is None else given,
        name=name if isinstance(name, str) else None,
        memory_bytes=number("totalGlobalMem"),
        capability=None if major is None or minor is None else (major, minor),
        multiprocessors=number("numSms"),
        warp_size=number("warpSize"),
        max_threads_per_sm=number("maxThreadsPerMultiprocessor"),
    )
