"""Convolutions: memory format and the choice of algorithm."""

from stepscope.analyze.whatif.changes import Change, scale_host, scale_kernels
from stepscope.analyze.whatif.gains_known import Known, config
from stepscope.analyze.whatif.gains_known import kernels as known_kernels
from stepscope.analyze.whatif.select import host, kernels

_LEFT = 0.05  # of layout changes: the batch itself is still changed once
_NORMALISING = 0.6  # of that between convolutions in fp32: slow in NCHW, a prior (ResNet-50, H200)
_HOST = 1.04  # strided weights cost forward and backward that much more host time (ResNets)
_TUNED = 0.92  # of a convolution's time with the fastest algorithm: a prior, between 0.8 and 1


def channels_last(value: str | None, known: Known) -> list[Change] | None:
    """Layout changes around convolutions go away, and normalising between them takes less time.

    None where there are no layout changes.
    """
    if not any(k["category"] == "layout change" for k in known_kernels(known)):
        return None
    return [
        scale_kernels(kernels("layout change"), _LEFT),
        scale_kernels(kernels("normalisation", operator="cudnn_batch_norm"), _NORMALISING),
        *(scale_host(host(phase=phase), _HOST) for phase in ("forward", "backward")),
    ]


def cudnn_benchmark(value: str | None, known: Known) -> list[Change] | None:
    """Convolutions by the fastest algorithm; None without any, or where that is done already."""
    on = (config(known).get("switches") or {}).get("cudnn_benchmark")
    if on or not any(k["category"] == "convolution" for k in known_kernels(known)):
        return None
    return [scale_kernels(kernels("convolution"), _TUNED)]
