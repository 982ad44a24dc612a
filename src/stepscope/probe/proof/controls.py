"""What a proof changes in a trial: random draws that depend on the batch alone, whoever makes it,
and weights rounded once before the first step.
"""

import functools
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref
from zlib import crc32

import torch

from stepscope.probe.core import Core
from stepscope.probe.patches import Patches
from stepscope.probe.points.loader import array_leaves
from stepscope.record.facts import PerturbedFact, ProblemFact
from stepscope.record.problems import ProblemKind

_LOOKED_AT = 1024  # values of each tensor


class PerBatchDraws:
    """Of datasets with samples by number. `key` as for `Seeding`."""

    def __init__(self, key: int) -> None:
        self._key = key
        self.batches: list[int | None] = []
        """A checksum of each that the program was given; None where it has none."""

    def install(self, patches: Patches) -> None:
        """Forked workers inherit it."""
        from torch.utils.data._utils.fetch import _MapDatasetFetcher
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        original_fetch, original_next = _MapDatasetFetcher.fetch, _BaseDataLoaderIter.__next__

        @functools.wraps(original_fetch)
        def fetch(fetcher: Any, index: Any) -> Any:
            with seeded_generators(crc32(repr(index).encode(), self._key)):
                return original_fetch(fetcher, index)

        @functools.wraps(original_next)
        def following(iterator: Any) -> Any:
            batch = original_next(iterator)
            try:
                self.batches.append(batch_checksum(batch))
            except Exception:
                self.batches.append(None)
            return batch

        patches.set(_MapDatasetFetcher, "fetch", fetch)
        patches.set(_BaseDataLoaderIter, "__next__", following)


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """random, numpy and torch begin at a seed, and go on afterwards as if nothing was drawn."""
    module = sys.modules.get("numpy")
    numpy = None if module is None else module.random.mtrand._rand
    before = random.getstate(), torch.default_generator.get_state()
    state = None if numpy is None else numpy.get_state()
    random._inst.seed(seed)
    torch.default_generator.manual_seed(seed)
    if numpy is not None:
        numpy.seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        torch.default_generator.set_state(before[1])
        if numpy is not None:
            numpy.set_state(state)


def batch_checksum(batch: Any) -> int | None:
    """Of some values of each of its tensors and arrays; None of a batch that has none."""
    found = None
    for leaf in array_leaves(batch):
        tensor = torch.as_tensor(leaf).detach().reshape(-1)
        some = tensor[:: max(1, tensor.numel() // _LOOKED_AT)].cpu().contiguous()
        found = crc32(some.view(torch.uint8).numpy().tobytes(), found or 0)
    return found


_DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""Binary digits of a number, of which the first is not stored."""
_ROUNDED_TO = {"float32": 24, "tfloat32": 11, "float16": 11, "bfloat16": 8}
_BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16}
_SEED = 20_090_331


class WeightPerturbation:
    """Rounds each model that is trained before its first call."""

    def __init__(self, core: Core, rounding: str) -> None:
        self._core = core
        self._rounding = rounding
        self._seen: dict[int, ref[Any]] = {}

    def install(self) -> None:
        """Before any fix that prepares models."""
        self._core.on_first_call.insert(0, self._found)
        self._core.fixing = True

    def _found(self, module: Any) -> None:
        trained = self._core.param_ids
        if trained and not any(id(p) in trained for p in module.parameters()):
            return
        count = 0
        seed = _SEED + 1_000_003 * (self._core.options.seed or 0)
        try:
            for parameter in module.parameters():
                known = self._seen.get(id(parameter))
                if known is not None and known() is parameter:
                    continue
                self._seen[id(parameter)] = ref(parameter)
                if type(parameter) in (torch.Tensor, torch.nn.Parameter):
                    count += round_once(parameter, self._rounding, seed + count)
        except RuntimeError as problem:  # as of a device without random numbers
            kind = ProblemKind.NOT_PERTURBED
            self._core.facts.write(ProblemFact(kind=kind, detail=str(problem)))
            return
        name = type(module).__qualname__
        fact = PerturbedFact(model=name, rounding=self._rounding, parameters=count)
        self._core.facts.write(fact)


def round_once(values: Any, rounding: str, seed: int) -> bool:
    """Round a tensor in place. Whether it is of a kind that can be. Where its own dtype is no finer
    than the rounding, half of its values move by one unit in the last place, up or down at random,
    by half a unit on average."""
    digits = _DIGITS.get(values.dtype)
    if digits is None or values.is_meta or values.layout is not torch.strided:
        return False
    now = values.detach()  # shares its memory
    if digits <= _ROUNDED_TO[rounding]:
        result = _moved(now, seed)
    elif rounding == "tfloat32":
        result = _cut(now.to(torch.float32)).to(now.dtype)
    else:
        result = now.to(getattr(torch, rounding)).to(now.dtype)
    now.copy_(torch.where(torch.isfinite(result), result, now))
    return True


def _cut(values: Any) -> Any:
    """float32 with ten bits of mantissa, rounded to the nearest, to even between two."""
    bits = values.view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def _moved(values: Any, seed: int) -> Any:
    generator = torch._C.Generator(values.device)  # never the program's
    generator.manual_seed(seed)
    form = {"device": values.device, "dtype": torch.uint8}
    draw = torch.randint(4, values.shape, generator=generator, **form)
    bits = values.view(_BITS[values.element_size()])
    moves = (draw == 0).to(bits.dtype) - (draw == 1).to(bits.dtype)
    return (bits + moves * (values != 0)).view(values.dtype)
