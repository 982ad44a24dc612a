"""The functions that several clocks time, and the clocks."""

import importlib
from collections.abc import Callable
from statistics import median
from typing import Any

Action = Callable[[], object]
OURS, ALONE = "stepscope, calls in a row", "stepscope, one at a time"
_SIZES = {
    "cuda": {"product": 8192, "images": 256, "pixels": 128, "elements": 1 << 28},
    "cpu": {"product": 512, "images": 4, "pixels": 64, "elements": 1 << 20},
}


def functions(device: str) -> dict[str, Action]:
    """By name; on a GPU large enough that it, not the host, sets the time, and that what lies in
    its caches is no matter: some clocks empty them before each call."""
    import torch

    torch.manual_seed(0)
    sizes = _SIZES[device]
    left, right = (torch.randn(sizes["product"], sizes["product"], device=device) for _ in "ab")
    values = torch.randn(sizes["elements"], device=device)
    images = torch.randn(sizes["images"], 3, sizes["pixels"], sizes["pixels"], device=device)
    net = _net(torch.nn).to(device).eval().requires_grad_(False)
    return {
        f"product of {sizes['product']}² matrices": lambda: left @ right,
        f"conv net, {sizes['images']}×3×{sizes['pixels']}²": lambda: net(images),
        f"pointwise chain, {sizes['elements']:,} values": lambda: values.sin().mul(2).add(1).relu(),
    }


def _net(nn: Any) -> Any:
    layers: list[Any] = []
    for inside, outside in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def clocks(device: str, seconds: float) -> tuple[dict[str, Callable[[Action], float]], list[str]]:
    """By name, what gives the median seconds of a call; and why another clock is missing."""
    found = {
        OURS: lambda action: _in_a_row(action, device, seconds),
        ALONE: lambda action: _alone(action, device, seconds),
        "torch.utils.benchmark": lambda action: _torch(action, seconds),
    }
    if device != "cuda":
        return found, ["triton.testing.do_bench was left out: it needs a CUDA device"]
    try:
        do_bench = importlib.import_module("triton.testing").do_bench
    except ImportError:
        return found, ["triton.testing.do_bench was left out: triton is not installed"]
    return {**found, "triton.testing.do_bench": lambda a: _triton(do_bench, a, seconds)}, []


def _in_a_row(action: Action, device: str, seconds: float) -> float:
    """As `stepscope bench` times steps: the ends of calls are marked, none is waited for."""
    import torch

    from stepscope.workloads.measure.clock import clock_for
    from stepscope.workloads.measure.meter import Limits, Meter, WarmupRule

    meter = Meter(clock_for(torch.device(device)), Limits(seconds=seconds), WarmupRule())
    meter.begin()
    action()
    while meter.call(1):
        action()
    meter.end()
    return median(meter.series_s)


def _alone(action: Action, device: str, seconds: float) -> float:
    """As `stepscope doctor` times its ceilings: each call is waited for."""
    from stepscope.hardware.ceiling_measurements import time_repeats

    return median(time_repeats(action, device, seconds).steady_s)


def _torch(action: Action, seconds: float) -> float:
    import torch
    from torch.utils.benchmark import Timer

    threads = torch.get_num_threads()  # its default is one
    timer = Timer("action()", globals={"action": action}, num_threads=threads)
    return float(timer.blocked_autorange(min_run_time=seconds).median)


def _triton(do_bench: Any, action: Action, seconds: float) -> float:
    ms = do_bench(action, warmup=300 * seconds, rep=1000 * seconds, return_mode="median")
    return float(ms) / 1e3
