"""Why a device is idle, in words."""

from typing import Any

from stepscope.report.text import safe, shortened

IDLE_CAUSES = {
    "loader": "waiting for the data loader",
    "host": "the host launches too slowly",
    "synchronisation": "synchronisations",
    "copy": "waiting for copies",
    "other_ranks": "waiting for other ranks",
    "between_kernels": "between kernels",
    "unknown": "not explained",
}
_AUTOGRAD = "autograd::engine::evaluate_function: "


def host_place(where: str) -> str:
    """What the host was in, without what autograd puts before every one of its nodes."""
    return where.removeprefix(_AUTOGRAD)


def idle_place(places: list[dict[str, Any]]) -> str:
    """The costliest place on the host, short; empty where none is known."""
    where = places[0]["where"] if places else None
    return shortened(host_place(safe(where)), 25) if where else ""
