"""What is known of a program when a fix's gain is worked out: its documents and ceilings."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from stepscope.hardware.ceiling_cache import known_ceilings

Document = Mapping[str, Any]
Row = Mapping[str, Any]


class Known(Protocol):
    """A run or a trace; `diagnose.case.Case` is one."""

    @property
    def show(self) -> Document | None:
        """The run's document; None for a trace alone."""

    @property
    def trace(self) -> Document | None:
        """The window's analysis; None where none was recorded."""

    @property
    def device(self) -> str:
        """cuda or cpu."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The most the device can do; empty and None where nothing is known."""

    flops_per_s: Mapping[str, float]
    bytes_per_s: float | None


def ceilings(known: Known) -> Ceilings:
    """Of the GPU as the roofline took them; of the processor as `doctor` measured them."""
    if known.device != "cpu":
        found = ((known.trace or {}).get("roofline") or {}).get("ceilings") or {}
        return Ceilings(found.get("flops_per_s") or {}, found.get("bytes_per_s"))
    cpu = (config(known).get("machine") or {}).get("cpu") or {}
    return _measured(cpu.get("model"), known_ceilings())


def _measured(model: str | None, documents: Iterable[Document]) -> Ceilings:
    """Each rate as low, or for fp32 as high, as its spread allows: no promise rests on noise."""
    for document in documents:
        if model is None or document.get("device") != model:
            continue
        entries = document["ceilings"]
        rates = {}
        for dtype, sign in (("fp32", 1.0), ("bf16", -1.0)):
            entry = entries.get(f"matmul_{dtype}_tflops")
            if entry is not None:
                rates[dtype] = entry["value"] * max(0.0, 1 + sign * entry["spread"]) * 1e12
        memory = entries.get("memory_gb_per_s")
        return Ceilings(rates, memory["value"] * 1e9 if memory else None)
    return Ceilings({}, None)


def config(known: Known) -> Document:
    """What the program is set to; empty for a trace alone."""
    return (known.show or {}).get("config") or {}


def shapes(known: Known) -> list[Row]:
    """Operators by shape with their time, FLOPs and bytes; empty where not recorded."""
    return list(((known.trace or {}).get("roofline") or {}).get("shapes") or [])


def kernels(known: Known) -> list[Row]:
    """Kernels by name."""
    return list((known.trace or {}).get("kernels") or [])


def parameters(known: Known) -> int | None:
    """How many numbers are trained; None where not known."""
    models = config(known).get("models") or []
    return sum(model["trainable"] for model in models) or None


def steps(known: Known) -> int:
    """Steps in the window, at least 1."""
    return max(1, int(((known.trace or {}).get("steps") or {}).get("count") or 0))


def host_operators(known: Known) -> list[Row]:
    """The host's operators with most time of their own."""
    return list(((known.trace or {}).get("host") or {}).get("operators") or [])
