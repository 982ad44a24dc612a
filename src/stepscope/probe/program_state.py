"""The program's settings and memory: models, optimizers, torch's switches and bytes by kind, read
at a few steps and at the end.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any
from weakref import ref

import torch
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves

from stepscope.probe.core import Core
from stepscope.probe.row_log import OBSERVER
from stepscope.probe.step_rule import NEVER
from stepscope.probe.unseen import modules_of, parameters_of
from stepscope.record.facts import (
    ConfigFact,
    Distributed,
    FailedAllocationFact,
    MemoryFact,
    ModelConfig,
    OptimizerFact,
    ScalerConfig,
    Switches,
)

_DATA_PARALLEL = ("DistributedDataParallel", "FullyShardedDataParallel")
_SCALE_EVERY = 20
_SHOWN = 4  # root models that are described
_CONFIG_STEPS = (3, 30, 300)  # steps at which the configuration is read; the last reading stands


class ConfigReader:
    """Reads the configuration at a few steps and at the end."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._roots: list[_RootModel] = []
        self._optimizers: list[ref[Any]] = []
        self.autocast: str | None = None
        """The dtype of the program's own."""
        self._scales: list[float] = []
        self._looks: tuple[int, ...] = _CONFIG_STEPS
        self._scale_at = 0
        core.on_root.append(self._root)
        core.on_optimizer.append(self._optimizer)
        core.on_step.append(self._step)

    def _root(self, module: Any, given: Any) -> None:
        """Called as the root returns, still under the program's own autocast."""
        if not any(root.module() is module for root in self._roots):
            gone = [root for root in self._roots[_SHOWN:] if root.module() is None]
            self._roots = [root for root in self._roots if root not in gone]
            described = describe_model(module)
            self._roots.append(_RootModel(ref(module), described, _kinds_of_inputs(given)))
        for kind in ("cuda", "cpu"):
            if torch.is_autocast_enabled(kind):
                self.autocast = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")

    def _optimizer(self, optimizer: Any, number: int) -> None:
        self._optimizers = [known for known in self._optimizers if known() is not None]
        self._optimizers.append(ref(optimizer))
        groups = optimizer.param_groups
        group = groups[0] if groups else {}
        rate = group.get("lr")
        fact = OptimizerFact(
            id=number,
            name=type(optimizer).__qualname__,
            parameters=sum(len(g["params"]) for g in groups),
            groups=len(groups),
            lr=rate if isinstance(rate, float | int) and isfinite(rate) else None,
            **{flag: group[flag] for flag in ("foreach", "fused", "capturable") if flag in group},
        )
        self._core.facts.write(fact)

    def _step(self, step: int) -> int:
        if self._looks and step >= self._looks[0]:
            self._looks = tuple(at for at in _CONFIG_STEPS if at > step)
            self.write()
        following = self._looks[0] if self._looks else NEVER
        if self._core.scaler is None:
            return following
        if step >= self._scale_at:
            self._scale_at = step + _SCALE_EVERY
            scale = getattr(self._core.scaler(), "_scale", None)
            if scale is not None and not self._core.window.is_program_profiled():
                self._core.device.late(scale, self._scales.append)
        return min(following, self._scale_at)

    @property
    def modules(self) -> list[Any]:
        """The root models still alive, outermost first."""
        return [module for root in self._roots if (module := root.module()) is not None]

    @property
    def called(self) -> "list[tuple[Any, frozenset[InputKind]]]":
        """The same with what their first call was given."""
        found = [(root.module(), root.inputs) for root in self._roots]
        return [(module, inputs) for module, inputs in found if module is not None]

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers seen stepping and still alive."""
        return [optimizer for known in self._optimizers if (optimizer := known()) is not None]

    def write(self) -> None:
        """One fact with the current settings."""
        from torch import distributed

        for root in self._roots[:_SHOWN]:
            if (module := root.module()) is not None:
                root.last = describe_model(module)
        cudnn = torch.backends.cudnn
        fact = ConfigFact(
            models=[root.last for root in self._roots[:_SHOWN]],
            autocast=self.autocast,
            switches=Switches(
                tf32_matmul=torch.get_float32_matmul_precision(),
                tf32_cudnn=cudnn.allow_tf32,
                cudnn_benchmark=cudnn.benchmark,
                cudnn_deterministic=cudnn.deterministic,
                deterministic=torch.are_deterministic_algorithms_enabled(),
                anomaly_detection=torch.is_anomaly_enabled(),
                threads=torch.get_num_threads(),
            ),
        )
        if self._core.scaler is not None:
            updates = self._core.skipped_updates
            fact.scaler = ScalerConfig(scales=self._scales, skipped_updates=updates)
        if distributed.is_available() and distributed.is_initialized():
            size, backend = distributed.get_world_size(), distributed.get_backend()
            fact.distributed = Distributed(world_size=size, backend=backend)
        self._core.facts.write(fact)
        self._tell()

    def _tell(self) -> None:
        """In the observer's own time; what fails there costs nothing else."""
        begun = self._core.log.enter(OBSERVER) if self._core.on_config else 0
        for read in self._core.on_config:
            with suppress(Exception):
                read()
        if begun:
            self._core.log.leave()


InputKind = tuple[type, torch.device | None, torch.layout | None]
"""A class of arguments; of tensors also where they were and how they were laid out."""


@dataclass(slots=True)
class _RootModel:
    """A root model, which the program may throw away, and what it was when last looked at."""

    module: ref[Any]
    last: ModelConfig
    inputs: frozenset[InputKind]
    """Of its first call."""


def _kinds_of_inputs(given: Any) -> frozenset[InputKind]:
    return frozenset(
        (type(leaf), leaf.device, leaf.layout)
        if isinstance(leaf, torch.Tensor)
        else (type(leaf), None, None)
        for leaf in tree_leaves(given)
    )


def describe_model(module: Any) -> ModelConfig:
    """A model's parameters, dtypes, devices, memory format and wrappers."""
    dtypes: dict[str, int] = {}
    devices: set[str] = set()
    parts = list(modules_of(module))
    total = trainable = 0
    channels_last = convolutions = 0
    for parameter in parameters_of(module):
        count = parameter.numel()
        total += count
        trainable += count if parameter.requires_grad else 0
        dtype = str(parameter.dtype).removeprefix("torch.")
        dtypes[dtype] = dtypes.get(dtype, 0) + count
        devices.add(str(parameter.device))
        if parameter.dim() == 4 and parameter.shape[2] > 1:
            convolutions += 1
            channels_last += parameter.is_contiguous(memory_format=torch.channels_last)
    return ModelConfig(
        name=type(module).__qualname__,
        parameters=total,
        trainable=trainable,
        dtypes=dtypes,
        devices=sorted(devices),
        memory_format="channels_last" if channels_last > convolutions / 2 else "contiguous",
        convolved_dims=sorted({len(m.kernel_size) for m in parts if isinstance(m, _ConvNd)}),
        attends=any("attention" in type(m).__name__.lower() for m in parts),
        training=bool(module.training),
        compiled=any(
            "_orig_mod" in m._modules or getattr(m, "_compiled_call_impl", None) is not None
            for m in parts
        ),
        ddp=any(type(m).__name__ in _DATA_PARALLEL for m in parts),
    )


STATE_KINDS = ("parameters", "gradients", "optimizer_state", "buffers")


def state_bytes(optimizers: Iterable[Any], modules: Iterable[Any]) -> dict[str, dict[str, int]]:
    """Bytes of `KINDS` per device kind ("cpu", "cuda"); tied weights and views count once. Of
    sharded parameters the local shard counts; lazy and meta ones own no memory yet. Reads metadata
    only: no synchronisation, about 1 µs a tensor."""
    optimizers, modules = list(optimizers), list(modules)
    parameters = [p for module in modules for p in parameters_of(module)]
    parameters += [p for o in optimizers for group in o.param_groups for p in group["params"]]
    kinds = (
        parameters,
        [p.grad for p in parameters if p.is_leaf and p.grad is not None],
        [t for o in optimizers for t in _tensors(dict(o.state), depth=4)],
        [
            b
            for module in modules
            for part in modules_of(module)
            for b in part._buffers.values()
            if b is not None
        ],
    )
    seen: set[tuple[str, int]] = set()
    totals: dict[str, dict[str, int]] = {}
    for kind, tensors in zip(STATE_KINDS, kinds, strict=True):
        for device, key, size in (s for t in tensors for s in _storages(t)):
            if (device, key) not in seen:
                seen.add((device, key))
                device_kind = totals.setdefault(device.split(":")[0], dict.fromkeys(STATE_KINDS, 0))
                device_kind[kind] += size
    return totals


def _storages(tensor: Any) -> Iterator[tuple[str, int, int]]:
    """(device, address, bytes) of the memory behind a tensor; nothing where it has none."""
    if torch.nn.parameter.is_lazy(tensor) or tensor.device.type == "meta":
        return
    if type(tensor).__name__ == "FakeTensor":
        return
    tensor = getattr(tensor, "_local_tensor", tensor)
    flatten = getattr(tensor, "__tensor_flatten__", None)
    parts = [getattr(tensor, name) for name in flatten()[0]] if flatten else []
    if tensor.layout == torch.sparse_coo:
        parts = [tensor._values(), tensor._indices()]
    if parts:
        for part in parts:
            yield from _storages(part)
        return
    try:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):
        return
    if address and size:
        yield str(tensor.device), address, size


def _tensors(value: Any, depth: int) -> Iterator[Any]:
    """Tensors among the values of nested dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item, depth - 1)


_MEMORY_STEPS = (1, 2, 20, 200, 2000, 20000)


class MemoryReader:
    """Writes `memory` facts; the last one stands."""

    def __init__(self, core: Core, config: ConfigReader) -> None:
        self._core = core
        self._config = config
        self._activations: int | None = None
        self._looks: tuple[int, ...] = _MEMORY_STEPS
        self._state: dict[str, dict[str, int]] = {}
        core.on_step.append(self._step)

    def _step(self, step: int) -> int:
        device = self._core.device
        if not device.active and torch.version.cuda is not None and torch.cuda.is_initialized():
            device.activate()
        if device.active and self._activations is None and step >= 2:
            self._core.roots.measure = self._measured
        if self._looks and step >= self._looks[0]:
            self._looks = tuple(at for at in _MEMORY_STEPS if at > step)
            self.write()
        if step < _MEMORY_STEPS[2]:
            return step + 1
        return self._looks[0] if self._looks else NEVER

    def _measured(self, nbytes: int) -> None:
        self._activations = nbytes

    def write(self) -> None:
        """One fact with the peaks so far."""
        if self._core.device.failed:  # it tells nothing any more
            return
        state = state_bytes(self._config.optimizers, self._config.modules)
        for kind, sizes in state.items():
            kept = self._state.setdefault(kind, dict.fromkeys(sizes, 0))
            for name, size in sizes.items():
                kept[name] = max(kept[name], size)
        fact = MemoryFact(state=self._state, activations_bytes=self._activations)
        if self._core.device.active:
            fact.peak_allocated_bytes = torch.cuda.max_memory_allocated()
            fact.peak_reserved_bytes = torch.cuda.max_memory_reserved()
            fact.retries = torch.cuda.memory_stats().get("num_alloc_retries", 0)
        self._core.facts.write(fact)


def watch_out_of_memory(write: Callable[[FailedAllocationFact], None]) -> None:
    """Have `write` called with one fact whenever a CUDA allocation fails. Also called for failures
    the program or cuDNN recovers from. `write` runs on the failing thread without the allocator's
    lock, so it may read statistics and snapshots."""

    def observer(device: int, requested: int, total: int, free: int) -> None:
        # An exception here would replace the program's own error.
        try:
            stats = torch.cuda.memory_stats(device)
            fact = FailedAllocationFact(
                requested_bytes=requested,
                allocated_bytes=stats.get("allocated_bytes.all.current"),
                reserved_bytes=stats.get("reserved_bytes.all.current"),
                free_bytes=free,
                total_bytes=total,
                device=device,
            )
            write(fact)
        except Exception:
            return

    def attach() -> None:
        try:
            torch._C._cuda_attach_out_of_memory_observer(observer)
        except Exception:
            return

    torch.cuda._lazy_call(attach)
