"""What training keeps in memory between steps, in bytes, each storage counted once."""

from collections.abc import Iterable, Iterator
from typing import Any

KINDS = ("parameters", "gradients", "optimizer_state", "buffers")


def state_bytes(optimizers: Iterable[Any], modules: Iterable[Any]) -> dict[str, dict[str, int]]:
    """Bytes of `KINDS` per device kind ("cpu", "cuda"); tied weights and views count once.

    Of sharded parameters the local shard counts; lazy and meta ones own no memory yet. Reads
    metadata only: no synchronisation, about 1 µs a tensor.
    """
    optimizers, modules = list(optimizers), list(modules)
    parameters = [p for module in modules for p in module.parameters()]
    parameters += [p for o in optimizers for group in o.param_groups for p in group["params"]]
    kinds = (
        parameters,
        [p.grad for p in parameters if p.is_leaf and p.grad is not None],
        [t for o in optimizers for t in _tensors(dict(o.state), depth=4)],
        [b for module in modules for b in module.buffers()],
    )
    seen: set[tuple[str, int]] = set()
    totals: dict[str, dict[str, int]] = {}
    for kind, tensors in zip(KINDS, kinds, strict=True):
        for device, key, size in (s for t in tensors for s in _storages(t)):
            if (device, key) not in seen:
                seen.add((device, key))
                device_kind = totals.setdefault(device.split(":")[0], dict.fromkeys(KINDS, 0))
                device_kind[kind] += size
    return totals


def _storages(tensor: Any) -> Iterator[tuple[str, int, int]]:
    """(device, address, bytes) of the memory behind a tensor; nothing where it has none."""
    import torch

    if torch.nn.parameter.is_lazy(tensor) or tensor.device.type == "meta":
        return
    tensor = getattr(tensor, "_local_tensor", tensor)
    if tensor.layout in (torch.sparse_coo,):
        yield from _storages(tensor._values())
        yield from _storages(tensor._indices())
        return
    parts = getattr(tensor, "__tensor_flatten__", None)
    if parts is not None:
        for name in parts()[0]:
            yield from _storages(getattr(tensor, name))
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
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item, depth - 1)
