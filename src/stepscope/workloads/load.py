"""How fast one setting of a DataLoader delivers batches to a device: one process, one number."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from stepscope.hardware.process_tree import ProcessTree
from stepscope.record.errors import StepscopeError, UsageError
from stepscope.store.json_file import write_json
from stepscope.workloads.measure.loader import (
    BatchTarget,
    Delivered,
    LoaderSource,
    deliver,
    loader_source,
    ms_per_round,
    one_line_error,
    sample_bytes,
)

_ABOUT = """How fast one setting of a DataLoader delivers batches to a device.

python -m stepscope.workloads.load --model resnet18 --batch 64 --workers 4 --pin on --device cuda
python -m stepscope.workloads.load --model data.py:dataset --batch 64 --measure result.json
"""


def _parse_load_arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", required=True, help="a workload, file.py:dataset, module:dataset"
    )
    parser.add_argument("--batch", type=_count(1), default=32)
    parser.add_argument("--workers", type=_count(0), default=0)
    parser.add_argument("--pin", choices=("off", "on"), default="off")
    parser.add_argument("--prefetch", type=_count(1), default=2, help="batches ahead, each worker")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=_count(1), default=2048)
    parser.add_argument("--size", type=int)
    parser.add_argument("--decode-ms", type=float, default=0.0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--resize", type=int)
    parser.add_argument("--disk-mb-s", type=float)
    parser.add_argument("--measure", type=Path, metavar="FILE")
    options = parser.parse_args()
    options.pin = options.pin == "on"
    return options


def _count(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isdecimal() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"{text} is not a number from {least} up")
        return int(text)

    return read


SCHEMA = "stepscope.loaded/1"
_ASKED = ("model", "batch", "workers", "pin", "prefetch", "device")


class EndlessSampler(Sampler[int]):
    """All samples in random order, again and again: no epoch ends while the clock runs."""

    def __init__(self, samples: int, seed: int) -> None:
        self._samples = samples
        self._seed = seed

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed)
        while True:
            yield from torch.randperm(self._samples, generator=generator).tolist()


def main() -> int:
    """Measure, tell, and write what was measured; errors become one line."""
    options = _parse_load_arguments()
    about = {
        "schema": SCHEMA,
        **{name: getattr(options, name) for name in _ASKED},
        "mode": "load",
        "torch": torch.__version__,
        "notes": [],
    }
    try:
        found = {**measure_loader(options), "error": None}
    except Exception as problem:
        kind, code = _kind(problem)
        text = str(problem) if isinstance(problem, StepscopeError) else one_line_error(problem)
        found = {"error": {"kind": kind, "text": text}}
        if code == 1:
            traceback.print_exc()
        print(text, file=sys.stderr)
    else:
        code = 0
        print(f"{found['samples'] / found['elapsed_s']:,.0f} samples/s")
    if options.measure:
        write_json(options.measure, {**about, **found}, indent=None)
    return code


def measure_loader(options: argparse.Namespace) -> dict[str, Any]:
    """The numbers of one setting. Raises UsageError where no setting could work."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("torch does not see a CUDA device: --device cpu")
    torch.manual_seed(options.seed)
    source = loader_source(options)
    each = sample_bytes(options.model, source)
    place = BatchTarget(options.device, options.pin, options.batch)
    loader = make_loader(source, options)
    tree = ProcessTree(os.getpid(), {})

    def look() -> None:
        tree.refresh()
        tree.sample()

    delivered = deliver(
        _endless(loader),
        place.take,
        place.wait,
        workers=options.workers,
        prefetch=options.prefetch,
        seconds=options.seconds,
        on_first=look,
    )
    used = tree.sample()
    name = torch.cuda.get_device_name() if options.device == "cuda" else None
    return {
        "device_name": name,
        "dataset": {
            "kind": type(source.dataset).__name__,
            "samples": source.samples,
            "sample_bytes": each,
        },
        **_numbers(delivered, options.workers),
        "rss_bytes": int(used["rss_bytes"]),
        "cores": used["cpu_percent"] / 100,
    }


def make_loader(source: LoaderSource, options: argparse.Namespace) -> Any:
    """The DataLoader of one setting."""
    endless = None if source.samples is None else EndlessSampler(source.samples, options.seed)
    return DataLoader(
        source.dataset,
        batch_size=options.batch,
        sampler=endless,
        num_workers=options.workers,
        collate_fn=source.collate,
        pin_memory=options.pin,
        prefetch_factor=options.prefetch if options.workers else None,
        persistent_workers=options.workers > 0,
    )


def _endless(loader: Any) -> Iterator[Any]:
    """Its batches; a stream that ends is begun again."""
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise RuntimeError("the loader gives no batches")


def _numbers(delivered: Delivered, workers: int) -> dict[str, Any]:
    numbers = asdict(delivered)
    gaps = np.array(numbers.pop("gaps_s")) * 1e3
    p50, p95, p99 = (float(np.percentile(gaps, q)) for q in (50, 95, 99))
    series = ms_per_round(delivered.gaps_s, workers)
    return {**numbers, "p50_ms": p50, "p95_ms": p95, "p99_ms": p99, "series_ms": series}


def _kind(problem: Exception) -> tuple[str, int]:
    """(kind of error, exit code)."""
    if isinstance(problem, StepscopeError):
        return "failed", 2
    is_memory = isinstance(problem, MemoryError | torch.OutOfMemoryError)
    return ("out_of_memory", 3) if is_memory else ("failed", 1)


if __name__ == "__main__":
    sys.exit(main())
