"""Convolutions: memory format and the choice of algorithm."""

from stepscope.analyze.whatif.changes import Change, scale_host, scale_kernels
from stepscope.analyze.whatif.gains_known import Known, config
from stepscope.analyze.whatif.gains_known import kernels as known_kernels
from stepscope.analyze.whatif.select import host, kernels

_LEFT = 0.05  # of layout changes: the batch itself is still changed once
_HOST = 1.04  # strided weights cost forward and backward that much more host time (ResNets)
_TUNED = 0.92  # of a convolution's time with the fastest algorithm: a prior, between 0.8 and 1


def channels_last(value: str | None, known: Known) -> list[Change] | None:
    """Layout changes around convolutions go away; None where there are none."""
    if not any(k["category"] == "layout change" for k in known_kernels(known)):
        return None
    return [
        scale_kernels(kernels("layout change"), _LEFT),
        *(scale_host(host(phase=phase), _HOST) for phase in ("forward", "backward")),
    ]


def cudnn_benchmark(value: str | None, known: Known) -> list[Change] | None:
    """Convolutions by the fastest algorithm; None without any, or where that is done already."""
    on = (config(known).get("switches") or {}).get("cudnn_benchmark")
    if on or not any(k["category"] == "convolution" for k in known_kernels(known)):
        return None
    return [scale_kernels(kernels("convolution"), _TUNED)]
