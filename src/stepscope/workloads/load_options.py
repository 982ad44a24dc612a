"""What the loader program is asked on its command line."""

import argparse
from collections.abc import Callable
from pathlib import Path

_ABOUT = """How fast one setting of a DataLoader delivers batches to a device.

python -m stepscope.workloads.load --model resnet18 --batch 64 --workers 4 --pin on --device cuda
python -m stepscope.workloads.load --model data.py:dataset --batch 64 --measure result.json
"""


def arguments() -> argparse.Namespace:
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
