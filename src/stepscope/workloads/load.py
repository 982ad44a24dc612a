"""Measure how fast one setting of a DataLoader delivers batches to a device.

python -m stepscope.workloads.load --model resnet18 --batch 64 --workers 4 --pin on --device cuda
python -m stepscope.workloads.load --model data.py:dataset --batch 64 --measure result.json
"""

import os
import sys
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from stepscope.hardware.process_tree import ProcessTree
from stepscope.workloads.arguments import ProgramArguments
from stepscope.workloads.measure.loader import (
    BatchTarget,
    deliver,
    loader_source,
    ms_per_round,
    repeat_forever,
    sample_bytes,
)
from stepscope.workloads.measure.program import run_program
from stepscope.workloads.measure.record import LoadedDataset, LoadMeasured
from stepscope.workloads.models.from_user import one_line_error

_BATCH, _SECONDS = 32, 2.0


class EndlessSampler(Sampler[int]):
    """All samples in random order, repeatedly: no epoch ends while the clock runs."""

    def __init__(self, samples: int, seed: int) -> None:
        self._samples = samples
        self._seed = seed

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed)
        while True:
            yield from torch.randperm(self._samples, generator=generator).tolist()


def load(asked: ProgramArguments, measured: LoadMeasured, device: torch.device) -> None:
    """Time a DataLoader with one setting. Raises UsageError if no setting could work."""
    batch, workers, pin = asked.batch or _BATCH, asked.workers, asked.pin == "on"
    measured.model, measured.batch, measured.device = asked.model, batch, device.type
    measured.workers, measured.pin, measured.prefetch = workers, pin, asked.prefetch
    measured.torch = str(torch.__version__)
    source = loader_source(asked)
    each = sample_bytes(asked.model, source)
    target = BatchTarget(device, pin, batch)
    endless = None if source.samples is None else EndlessSampler(source.samples, asked.seed)
    loader = DataLoader(
        source.dataset,
        batch_size=batch,
        sampler=endless,
        num_workers=workers,
        collate_fn=source.collate,
        pin_memory=pin,
        prefetch_factor=asked.prefetch if workers else None,
        persistent_workers=workers > 0,
    )
    tree = ProcessTree(os.getpid(), {})

    def count_workers() -> None:
        tree.refresh()
        tree.sample()

    found = deliver(
        repeat_forever(loader),
        target.take,
        target.wait,
        workers=workers,
        prefetch=asked.prefetch,
        seconds=asked.seconds or _SECONDS,
        on_first=count_workers,
    )
    used = tree.sample()
    print(f"{found.samples / found.elapsed_s:,.0f} samples/s")
    measured.device_name = torch.cuda.get_device_name() if device.type == "cuda" else None
    measured.dataset = LoadedDataset(type(source.dataset).__name__, source.samples, each)
    measured.started_ns, measured.ended_ns = found.started_ns, found.ended_ns
    measured.elapsed_s, measured.first_s = found.elapsed_s, found.first_s
    measured.calls, measured.samples, measured.warmup = found.calls, found.samples, found.warmup
    percentiles = np.percentile(np.array(found.gaps_s) * 1e3, (50, 95, 99)).tolist()
    measured.p50_ms, measured.p95_ms, measured.p99_ms = percentiles
    measured.series_ms = ms_per_round(found.gaps_s, workers)
    measured.rss_bytes, measured.cores = int(used["rss_bytes"]), used["cpu_percent"] / 100


if __name__ == "__main__":
    sys.exit(run_program("load", __doc__, load, error_line=one_line_error))
