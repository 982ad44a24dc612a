"""How many samples a batch holds, read from the batch itself."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

_MOST_LEAVES = 32
_MOST_LOOKS = 512


def batch_axis(batch: Any, hint: int | None) -> int:
    """The dimension that counts samples, seen on a loader's first batch; `hint` is its batch_size.

    1 for time-major batches: no leaf has the hint as its first dimension, all have it as second.
    """
    shapes = [leaf.shape for leaf in leaves(batch) if len(leaf.shape) > 0]
    if hint is None or not shapes or any(shape[0] == hint for shape in shapes):
        return 0
    return int(all(len(shape) > 1 and shape[1] == hint for shape in shapes))


def batch_size(batch: Any, axis: int = 0) -> int:
    """Samples in a batch: the most common size of that dimension; 0 when nothing tells."""
    kind = type(batch)
    if (kind is list or kind is tuple) and batch:  # the usual case: inputs first
        shape = getattr(batch[0], "shape", None)
        if shape is not None and len(shape) > axis:
            other = getattr(batch[-1], "shape", None)
            if other is None or len(other) <= axis or other[axis] == shape[axis]:
                return int(shape[axis])
    shape = getattr(batch, "shape", None)
    if shape is not None and not isinstance(batch, Mapping):
        return int(shape[axis]) if len(shape) > axis else 0
    sizes = [leaf.shape[axis] for leaf in leaves(batch) if len(leaf.shape) > axis]
    if sizes:
        return int(sizes[0] if len(set(sizes)) == 1 else Counter(sizes).most_common(1)[0][0])
    return len(batch) if isinstance(batch, list | tuple) else 0


def batch_bytes(batch: Any) -> int:
    """What its tensors and arrays hold, the first few of them."""
    return sum(int(getattr(leaf, "nbytes", 0) or 0) for leaf in leaves(batch))


def leaves(batch: Any) -> Iterator[Any]:
    """Tensors and arrays in nested containers, the first few."""
    todo, found, looked = [batch], 0, 0
    while todo and found < _MOST_LEAVES and looked < _MOST_LOOKS:
        looked += 1
        item = todo.pop(0)
        if isinstance(item, Mapping):
            todo.extend(item.values())
        elif isinstance(item, list | tuple):
            todo.extend(item[:_MOST_LEAVES])
        elif getattr(item, "shape", None) is not None:
            found += 1
            yield item
