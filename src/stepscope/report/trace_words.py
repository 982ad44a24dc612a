"""What is said of a recording, wherever it is shown. Strangers' text is as it came."""

from typing import Any

from stepscope.report.text import milliseconds, size

Document = dict[str, Any]
_WORTH_SAYING = 1 << 16  # bytes copied a step


def remarks(document: Document) -> list[str]:
    """Launches, copies, tensor cores, communication and the critical path, a sentence each."""
    return [
        *_launches(document),
        *_copies(document),
        *_tensor_cores(document),
        *_communication(document),
        *_critical_path(document),
    ]


def _launches(document: Document) -> list[str]:
    launch = document["launch"]
    if launch["shorter_than_launch"] is None:
        return []
    latency = launch["latency"]["p50_ns"] or 0
    return [
        f"launches: {launch['shorter_than_launch']:.0%} of kernels shorter than their launch,"
        f" half start in {latency / 1e3:,.0f} µs"
    ]


def _copies(document: Document) -> list[str]:
    steps = document["steps"]["count"]
    return [
        f"copies {copy['direction']} ({copy['memory']}): {size(copy['bytes'] / steps)}"
        f" a step at {copy['bytes_per_s'] / 1e9:.1f} GB/s, {copy['overlapped']:.0%} hidden"
        for copy in document["copies"]
        if copy["direction"] in ("HtoD", "DtoH")
        and copy["bytes_per_s"]
        and copy["bytes"] / steps >= _WORTH_SAYING
    ]


def _tensor_cores(document: Document) -> list[str]:
    cores = document["tensor_cores"]["matrix_share"]
    return [] if cores is None else [f"tensor cores: {cores:.0%} of the time of matrix work"]


def _communication(document: Document) -> list[str]:
    talk, steps = document["communication"], document["steps"]["count"]
    if not talk or not talk["device_ns"]:
        return []
    return [
        f"communication: {milliseconds(talk['device_ns'] / steps / 1e6)} ms a step,"
        f" {talk['overlap_share'] or 0:.0%} hidden behind computing"
    ]


def _critical_path(document: Document) -> list[str]:
    path = document["critical_path"]
    if not path:
        return []
    shares = [f"{part['category']} {part['share']:.0%}" for part in path["by_category"][:2]]
    return [
        f"critical path: {path['device_ns'] / path['total_ns']:.0%} device,"
        f" {path['host_ns'] / path['total_ns']:.0%} host ({', '.join(shares)})"
    ]
