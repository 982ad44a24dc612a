"""Makes samples expensive on purpose, the ways real ones are."""

import time
import zlib
from typing import Any, Final

import numpy as np

from stepscope.workloads.data_items import Source

_BLOCK: Final = 1 << 15
_TRIALS: Final = 25


class Late:
    """Every sample comes after a wait, as over a network."""

    def __init__(self, source: Source, latency_ms: float) -> None:
        self.source = source
        self.latency_s = latency_ms / 1e3

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        time.sleep(self.latency_s)
        return self.source[index]


class Unpacked:
    """Every sample has compressed bytes unpacked for it, as often as takes about `decode_ms`.

    How often is found once, when this is made; with processors shared it takes longer, as decoding
    would.
    """

    def __init__(self, source: Source, decode_ms: float) -> None:
        self.source = source
        self.packed = _packed()
        self.times = max(1, round(decode_ms / _unpacking_ms(self.packed)))

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        for _ in range(self.times):
            zlib.decompress(self.packed)
        return self.source[index]


def _packed() -> bytes:
    """Bytes that compress about as well as a photograph's rows."""
    steps = np.random.default_rng(0).integers(-3, 4, _BLOCK)
    return zlib.compress(np.cumsum(steps).astype(np.uint8).tobytes(), 6)


def _unpacking_ms(packed: bytes) -> float:
    """Processor time of unpacking once, with nothing in its way."""
    times = []
    for _ in range(_TRIALS):
        start = time.perf_counter_ns()
        zlib.decompress(packed)
        times.append(time.perf_counter_ns() - start)
    return min(times) / 1e6
