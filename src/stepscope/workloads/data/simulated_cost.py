"""Makes samples deliberately expensive, as real ones are: latency, decoding, and a slow disk."""

import fcntl
import os
import struct
import tempfile
import time
import timeit
import weakref
import zlib
from typing import Any, Final

import numpy as np

from stepscope.record.errors import UsageError
from stepscope.workloads.data.samples import Source

_BLOCK: Final = 1 << 15
_TRIALS: Final = 25


class DelayedSource:
    """Every sample arrives after a delay, as over a network."""

    def __init__(self, source: Source, latency_ms: float) -> None:
        self.source = source
        self.latency_s = latency_ms / 1e3

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        time.sleep(self.latency_s)
        return self.source[index]


class DecodedSource:
    """Decompresses bytes for every sample, as often as takes about `decode_ms`. The count is
    calibrated once, on construction; on busy cores it takes longer, as decoding would."""

    def __init__(self, source: Source, decode_ms: float) -> None:
        self.source = source
        steps = np.random.default_rng(0).integers(-3, 4, _BLOCK)  # compressible like a photograph
        self.packed = zlib.compress(np.cumsum(steps).astype(np.uint8).tobytes(), 6)
        once_s = min(timeit.repeat(lambda: zlib.decompress(self.packed), repeat=_TRIALS, number=1))
        self.times = max(1, round(decode_ms / (1e3 * once_s)))

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        for _ in range(self.times):
            zlib.decompress(self.packed)
        return self.source[index]


_FREE_AT: Final = struct.Struct("d")
_CATCH_UP_S: Final = 0.005
"""Sleeps end some microseconds late: the disk makes up for at most this much."""


class DiskSource:
    """All samples of a source, in a temporary file that is deleted with this object. The file
    begins with the time until which the disk is busy, so that all processes share its rate. It is
    opened for each sample, which works however processes were started."""

    def __init__(self, source: Source, mb_per_s: float) -> None:
        image, target = source[0]
        parts = [("input", image.dtype, image.shape), ("target", target.dtype, target.shape)]
        self.record = np.dtype(parts)
        self.bytes_per_s = mb_per_s * 1e6
        self.samples = len(source)
        self.path = _write(source, self.record)
        weakref.finalize(self, _remove, self.path, os.getpid())

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if not 0 <= index < self.samples:
            raise IndexError(index)
        each = self.record.itemsize
        file = os.open(self.path, os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            (free_at,) = _FREE_AT.unpack(os.pread(file, _FREE_AT.size, 0))
            ready = max(free_at, time.monotonic() - _CATCH_UP_S) + each / self.bytes_per_s
            os.pwrite(file, _FREE_AT.pack(ready), 0)
            fcntl.flock(file, fcntl.LOCK_UN)
            read = bytearray(os.pread(file, each, _FREE_AT.size + index * each))
        finally:
            os.close(file)
        time.sleep(max(0.0, ready - time.monotonic()))
        item = np.frombuffer(read, self.record)[0]
        return item["input"], item["target"]


def _write(source: Source, record: np.dtype[Any]) -> str:
    """A new file with all samples. Raises UsageError if there is no room for it."""
    descriptor, path = tempfile.mkstemp(prefix="stepscope-samples-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_FREE_AT.pack(0.0))
            item = np.zeros((), record)
            for index in range(len(source)):
                item["input"], item["target"] = source[index]
                file.write(item.tobytes())
    except BaseException as problem:
        os.unlink(path)
        if not isinstance(problem, OSError):
            raise
        size = f"{len(source) * record.itemsize / 1e6:.0f} MB"
        raise UsageError(f"--disk-mb-s: {size} of samples for {path}: {problem.strerror}") from None
    return path


def _remove(path: str, process: int) -> None:
    """Forked workers hold the object too; only the first process removes the file."""
    if os.getpid() == process:
        os.unlink(path)
