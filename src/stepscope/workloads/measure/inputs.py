"""What a program works on: its model, samples and batches, and their description."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from stepscope.hardware.processor import cpu_model, read_text
from stepscope.record.errors import UsageError
from stepscope.workloads.arguments import ProgramArguments
from stepscope.workloads.catalogue import WORKLOADS, Workload, find_workload
from stepscope.workloads.data.options import TEST_SAMPLES, TRAIN_SAMPLES, DataOptions
from stepscope.workloads.data.samples import copy_to_device
from stepscope.workloads.data.tasks import Task, make_task
from stepscope.workloads.measure.arithmetic import (
    flops_per_generation,
    flops_per_sample,
    unobserved_calls,
)
from stepscope.workloads.measure.program import reset_peak_memory
from stepscope.workloads.measure.record import GenerateMeasured, ModelMeasured, TrainMeasured
from stepscope.workloads.models.build import BuiltModel, build_model


class _UnpackInputs(nn.Module):
    """Wraps a user's model that takes several tensors, so that it takes them as one input."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Any:
        return self.model(**inputs) if isinstance(inputs, dict) else self.model(*inputs)


class ResidentBatches:
    """Batches of samples that stay on the device: slices, always in the same order."""

    def __init__(self, samples: Any, batch: int, device: Any) -> None:
        whole = copy_to_device(samples, device)
        self._batches = [
            tree_map_only(Tensor, lambda tensor, at=start: tensor[at : at + batch], whole)
            for start in range(0, len(samples) - batch + 1, batch)
        ]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return iter(self._batches)


class MovedBatches:
    """Batches of several tensors, moved to the device one by one."""

    def __init__(self, batches: Any, device: Any) -> None:
        self._batches = batches
        self._device = device

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for batch in self._batches:
            yield tree_map_only(Tensor, lambda tensor: tensor.to(self._device), batch)


_RESIDENT_BYTES = 64 << 20


def build_for_mode(mode: str, asked: ProgramArguments, length: int | None = None) -> BuiltModel:
    """The requested model, on the CPU. Raises UsageError if it lacks the mode."""
    workload = find_workload(asked.model)
    _check(mode, workload)
    wanted = asked.length if length is None else length
    with unobserved_calls():  # probing a user's model does not count as a call of the program
        built = build_model(workload, size=asked.size, classes=asked.classes, length=wanted)
    _check(mode, built.workload)
    if built.user is not None and not isinstance(built.user.inputs(1), Tensor):
        return replace(built, model=_UnpackInputs(built.model))
    return built


def _check(mode: str, workload: Workload) -> None:
    if mode in workload.modes:
        return
    able = ", ".join(name for name, other in WORKLOADS.items() if mode in other.modes)
    own = ", ".join(workload.modes)
    if workload.task == "user":
        able = "a factory that returns (module, inputs, loss)"
    raise UsageError(f"{workload.name} has no mode {mode}, only {own}; {mode} works with {able}")


def data_options(
    asked: ProgramArguments, samples: int | None, test_samples: int | None
) -> DataOptions:
    """The requested data, with these numbers of samples; None: all."""
    return DataOptions(
        data=asked.data,
        folder=asked.folder,
        samples=samples,
        test_samples=test_samples,
        seed=asked.seed,
        decode_ms=asked.decode_ms,
        resize=asked.resize,
        latency_ms=asked.latency_ms,
        disk_mb_per_s=asked.disk_mb_s,
    )


def make_program_task(built: BuiltModel, asked: ProgramArguments, batch: int) -> Task:
    """The task with at least a batch of samples. Raises UsageError."""
    workload = built.workload
    samples, test = asked.samples, asked.test_samples  # None: all
    if asked.data == "resident":
        samples = samples or max(batch, _few(workload, TRAIN_SAMPLES))
        test = max(1, _few(workload, TEST_SAMPLES)) if test is None else test
    elif asked.data == "synthetic":
        samples = samples or max(TRAIN_SAMPLES, 4 * batch)
    task = make_task(workload, data_options(asked, samples, test), built.user)
    there = len(task.train)
    if there < batch:
        raise UsageError(f"--batch {batch} is more than the {there} samples to train with")
    return task


def _few(workload: Workload, most: int) -> int:
    """A number of samples that take little space on the device and little time to make."""
    each = 20 * (workload.size or 0) ** 2 + 16 * (workload.length or 0)
    return min(most, _RESIDENT_BYTES // each) if each else 0


def takes_several_tensors(built: BuiltModel) -> bool:
    return isinstance(built.model, _UnpackInputs)


def describe_workload(
    built: BuiltModel, asked: ProgramArguments, batch: int, measured: ModelMeasured, device: Any
) -> None:
    """Write down what is measured; FLOPs are counted before anything else sees the model."""
    model = built.model
    measured.model, measured.batch = asked.model, batch
    measured.device, measured.device_name = device.type, _device_name(device)
    measured.torch = str(torch.__version__)
    measured.parameters = sum(parameter.numel() for parameter in model.parameters())
    measured.tokens_per_sample = asked.new_tokens or built.workload.length
    if asked.measure is None:
        return
    if asked.flops:
        found: tuple[float | None, str | None] = (asked.flops, None)
    elif isinstance(measured, GenerateMeasured):
        found = flops_per_generation(model, asked.prompt, asked.new_tokens)
    else:
        train = isinstance(measured, TrainMeasured)
        found = flops_per_sample(model, lambda n: _example(built, n), train)
    measured.flops_per_sample, measured.flops_why_not = found
    reset_peak_memory()


def _example(built: BuiltModel, samples: int) -> Any:
    workload = built.workload
    if built.user is not None:
        return built.user.inputs(samples)
    if workload.task in ("images", "segmentation"):
        return torch.zeros(samples, 3, workload.size, workload.size)
    return torch.zeros(samples, workload.length, dtype=torch.int64)


def _device_name(device: Any) -> str | None:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return cpu_model(read_text(Path("/proc/cpuinfo")))
