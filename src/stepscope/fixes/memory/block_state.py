"""Restores what a block's result depends on besides its inputs for its second run, and undoes that
run's changes afterwards."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from stepscope.fixes.inspect.dataset_traits import DatasetTraits, is_generator
from stepscope.fixes.inspect.models import parameters_of
from stepscope.fixes.inspect.state_digest import EACH_BATCH, StateDigest, difference
from stepscope.fixes.inspect.tensors import map_tensors, tensor_version
from stepscope.fixes.lazy import torch
from stepscope.record.fix import Trait, TraitKind


class ChangingBuffers:
    """Learns from a block's first run which buffers change in place. Tensors in plain attributes
    count as buffers."""

    def __init__(self) -> None:
        self._changing: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()

    def knows(self, block: Any) -> bool:
        """Whether it has run."""
        return block in self._changing

    def before(self, block: Any) -> dict[str, Any]:
        """The buffers' contents before a run, if its result depends on them. A BatchNorm in
        training does not depend on its running statistics."""
        known, have = self._changing.get(block), _held_tensors(block)
        skipped = _statistics(block)
        names = [name for name in have if name not in skipped and (known is None or name in known)]
        return {name: have[name].clone() for name in names}

    def learn(self, block: Any, versions: dict[str, int | None]) -> None:
        """After the first run: buffers with a higher version changed."""
        if block not in self._changing:
            now = self.versions(block)
            self._changing[block] = [name for name in now if now[name] != versions.get(name)]

    def versions(self, block: Any) -> dict[str, int | None]:
        """How often each buffer has changed so far; empty once no longer needed."""
        if block in self._changing:
            return {}
        return {name: tensor_version(held) for name, held in _held_tensors(block).items()}

    @contextmanager
    def again(self, block: Any, before: dict[str, Any]) -> Iterator[None]:
        """Around the second run: restore buffers from before the first, then their current
        contents."""
        changing = {*self._changing.get(block, ()), *_statistics(block)}
        have = _held_tensors(block)
        now = {name: (have[name], have[name].clone()) for name in changing if name in have}
        for name in now.keys() & before.keys():
            now[name][0].data.copy_(before[name])  # unseen by autograd
        try:
            yield
        finally:
            for buffer, value in now.values():
                buffer.data.copy_(value)


def _held_tensors(block: Any) -> dict[str, Any]:
    """Buffers of a block, and tensors that are plain attributes of its modules."""
    return {
        f"{prefix}.{name}" if prefix else name: held
        for prefix, part in block.named_modules()
        for name, held in (*part._buffers.items(), *vars(part).items())
        if isinstance(held, torch.Tensor) and not held.requires_grad
    }


def _statistics(block: Any) -> list[str]:
    """Names of the running statistics of normalisations in training, which have a counter."""
    return [
        f"{name}.{buffer}" if name else buffer
        for name, module in block.named_modules()
        if module.training and getattr(module, "num_batches_tracked", None) is not None
        for buffer in ("running_mean", "running_var", "num_batches_tracked")
    ]


class BlockState:
    """Attributes of a block's modules, generators and globals before a run."""

    def __init__(self, block: Any, traits: DatasetTraits) -> None:
        self._parts = [(part, _attributes(part)) for part in block.modules()]
        self._parameters = [(each, tensor_version(each)) for each in parameters_of(block)]
        self._traits = traits
        self._globals = self._digest()
        draws = traits.draws is not None or traits.unknown is not None
        own = [held for part, _ in self._parts for held in vars(part).values()]
        seen = {id(one): one for one in (*traits.generators, *own) if is_generator(type(one))}
        self._generators = _generators(list(seen.values())) if draws else []
        self._drawn = [get() for get, _ in self._generators]

    def changed(self) -> Trait | None:
        """What changed and cannot be restored."""
        if any(tensor_version(each) != count for each, count in self._parameters):
            return Trait(TraitKind.CHANGES, type(self._parts[0][0]).__qualname__)
        now = self._digest()
        key = difference(self._globals, now, frozenset())
        return None if key is None else Trait(TraitKind.CHANGES, now.texts[key], now.places[key])

    def _digest(self) -> StateDigest:
        return StateDigest((), self._traits.slots.values(), EACH_BATCH, frozenset())

    @contextmanager
    def again(self) -> Iterator[None]:
        """Around the second run: restore everything from before the first, then the current
        state."""
        with ExitStack() as stack:
            for part, before in self._parts:
                stack.callback(_set_attributes, part, _attributes(part))
                _set_attributes(part, before)
            for (get, put), drawn in zip(self._generators, self._drawn, strict=True):
                stack.callback(put, get())
                put(drawn)
            yield


_Attributes = tuple[dict[str, Any], dict[str, Any]]


def _attributes(part: Any) -> _Attributes:
    """A module's attributes, including buffers, which are in a separate dictionary."""
    return dict(vars(part)), dict(part._buffers)


def _set_attributes(part: Any, held: _Attributes) -> None:
    attributes, buffers = held
    own = vars(part)
    for name in own.keys() - attributes.keys():
        del own[name]
    own.update(attributes)
    part._buffers.clear()
    part._buffers.update(buffers)


def _generators(seen: list[Any]) -> list[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """How to read and set each generator: Python's, NumPy's, and those seen. Torch restores its
    own."""
    found: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = []
    found.append((random.getstate, random.setstate))
    if numpy := sys.modules.get("numpy"):
        found.append((numpy.random.get_state, numpy.random.set_state))
    for one in seen:
        if hasattr(one, "bit_generator"):
            bits = one.bit_generator
            found.append((partial(getattr, bits, "state"), partial(setattr, bits, "state")))
        elif hasattr(one, "getstate"):
            found.append((one.getstate, one.setstate))
        elif hasattr(one, "get_state"):
            found.append((one.get_state, one.set_state))
    return found


class BlockInputs:
    """A block's input tensors. `keep`: copies, in case it changes them."""

    def __init__(self, given: Any, keep: bool) -> None:
        self._tensors: list[tuple[Any, int | None]] = []
        map_tensors(given, self._note)
        self._kept = {id(one): one.detach().clone() for one, _ in self._tensors} if keep else {}
        self._own = False

    def _note(self, tensor: Any) -> Any:
        self._tensors.append((tensor, tensor_version(tensor)))
        return tensor

    def _is_changed(self) -> bool:
        return any(tensor_version(one) != count for one, count in self._tensors)

    def changed_in_place(self) -> bool:
        """After the first run: whether it changed one of them. Copies are kept only then."""
        self._own = self._is_changed()
        self._tensors = [(one, tensor_version(one)) for one, _ in self._tensors]
        if not self._own:
            self._kept.clear()
        return self._own

    def changed(self) -> Trait | None:
        """Before the second run: whether something changed them since."""
        return Trait(TraitKind.CHANGES, "forward") if self._is_changed() else None

    def originals(self, given: Any) -> Any:
        """The inputs as in the first run."""
        return map_tensors(given, self._original) if self._kept else given

    def _original(self, tensor: Any) -> Any:
        kept = self._kept.get(id(tensor))
        return tensor if kept is None else kept.requires_grad_(tensor.requires_grad).clone()
