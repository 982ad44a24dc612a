"""What a program works on: its model, its samples, and what is known of both."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepscope.hardware.cpu import cpu_model
from stepscope.record.errors import UsageError
from stepscope.workloads.arguments import Asked
from stepscope.workloads.build import Built, build
from stepscope.workloads.catalogue import WORKLOADS, find
from stepscope.workloads.data_options import TEST_SAMPLES, TRAIN_SAMPLES
from stepscope.workloads.flops import flops_per_generation, flops_per_sample, plain_calls
from stepscope.workloads.measure_batches import Resident, Spread
from stepscope.workloads.measure_memory import forget_peak
from stepscope.workloads.measure_record import Measured
from stepscope.workloads.tasks import DataOptions, Shape, Task, make_task
from stepscope.workloads.workload import Workload

__all__ = ["Resident", "build_for", "describe", "is_nest", "make_samples"]

_RESIDENT_BYTES = 64 << 20


def build_for(mode: str, asked: Asked, length: int | None = None) -> Built:
    """The model as asked for, on the CPU. Raises UsageError where it has no such mode."""
    workload = find(asked.model)
    _check(mode, workload)
    wanted = asked.length if length is None else length
    with plain_calls():  # a look at what a user's model returns is no call of the program
        built = build(workload, size=asked.size, classes=asked.classes, length=wanted)
    _check(mode, built.workload)
    if built.given is not None and not isinstance(built.given.inputs(1), Tensor):
        return replace(built, model=Spread(built.model))
    return built


def _check(mode: str, workload: Workload) -> None:
    if mode in workload.modes:
        return
    able = ", ".join(name for name, other in WORKLOADS.items() if mode in other.modes)
    own = ", ".join(workload.modes)
    if workload.task == "given":
        able = "a factory that returns (module, inputs, loss)"
    raise UsageError(f"{workload.name} has no mode {mode}, only {own}; {mode} works with {able}")


def make_samples(built: Built, asked: Asked, batch: int) -> Task:
    """The samples, at least a batch of them. Raises UsageError."""
    workload = built.workload
    shape = Shape(workload.size, workload.classes, workload.length, workload.vocabulary)
    options = DataOptions(
        data=asked.data,
        folder=asked.folder,
        samples=asked.samples or _usual_samples(asked.data, workload, batch),
        test_samples=asked.test_samples or _usual_test_samples(asked.data, workload),
        seed=asked.seed,
        decode_ms=asked.decode_ms,
        resize=asked.resize,
        latency_ms=asked.latency_ms,
        disk_mb_per_s=asked.disk_mb_s,
    )
    task = make_task(workload, shape, options, built.given)
    there = len(task.train)
    if there < batch:
        raise UsageError(f"--batch {batch} is more than the {there} samples to train with")
    return task


def _usual_samples(data: str, workload: Workload, batch: int) -> int | None:
    """How many are made where none are asked for; None: all there are."""
    if data == "synthetic":
        return max(TRAIN_SAMPLES, 4 * batch)
    return max(batch, _few(workload, TRAIN_SAMPLES)) if data == "resident" else None


def _usual_test_samples(data: str, workload: Workload) -> int | None:
    return max(1, _few(workload, TEST_SAMPLES)) if data == "resident" else None


def _few(workload: Workload, most: int) -> int:
    """How many samples take little room on the device, and little time to make."""
    each = 20 * (workload.size or 0) ** 2 + 16 * (workload.length or 0)
    return min(most, _RESIDENT_BYTES // each) if each else 0


def is_nest(built: Built) -> bool:
    """Whether the model takes several tensors."""
    return isinstance(built.model, Spread)


def describe(built: Built, asked: Asked, batch: int, measured: Measured) -> None:
    """Say what is measured, with its operations counted before anybody else sees the model."""
    workload, model, device = built.workload, built.model, measured.device
    measured.say(
        model=asked.model,
        batch=batch,
        device=device.type,
        device_name=_device_name(device),
        torch=torch.__version__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        tokens_per_sample=asked.new_tokens or workload.length,
    )
    if asked.measure is None:
        return
    flops, why = (asked.flops, None) if asked.flops else _counted(built, asked, measured)
    measured.say(flops_per_sample=flops, flops_why_not=why)
    forget_peak()


def _counted(built: Built, asked: Asked, measured: Measured) -> tuple[float | None, str | None]:
    """Operations of a sample, or why they are not known."""
    mode = measured.facts["mode"]
    if mode == "generate":
        return flops_per_generation(built.model, asked.prompt, asked.new_tokens)
    return flops_per_sample(built.model, lambda n: _example(built, n), mode == "train")


def _example(built: Built, samples: int) -> Any:
    """Inputs of the right form."""
    workload = built.workload
    if built.given is not None:
        return built.given.inputs(samples)
    if workload.task in ("images", "segmentation"):
        return torch.zeros(samples, 3, workload.size, workload.size)
    return torch.zeros(samples, workload.length, dtype=torch.int64)


def _device_name(device: Any) -> str | None:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        return cpu_model(Path("/proc/cpuinfo").read_text())
    except OSError:
        return None
