"""How much memory the program uses, and for what.

At a few steps the state that training keeps is added up, and what one forward leaves behind for
backward is measured; the rest of the peak is what neither explains.
"""

from typing import Any

import torch

from stepscope.probe.config import ConfigReader
from stepscope.probe.core import NEVER, Core
from stepscope.probe.memory_state import state_bytes

_LOOK_AT = (1, 2, 20, 200, 2000, 20000)


class MemoryReader:
    """Writes `memory` facts; the last one stands."""

    def __init__(self, core: Core, config: ConfigReader) -> None:
        self._core = core
        self._config = config
        self._activations: int | None = None
        self._looks: tuple[int, ...] = _LOOK_AT
        self._state: dict[str, dict[str, int]] = {}
        core.on_step.append(self._step)

    def _step(self, step: int) -> int:
        device = self._core.device
        if not device.active and torch.version.cuda is not None and torch.cuda.is_initialized():
            device.activate()
        if device.active and self._activations is None and step >= 2:
            self._core.roots.measure = self._measured
        if self._looks and step >= self._looks[0]:
            self._looks = tuple(at for at in _LOOK_AT if at > step)
            self.write()
        if step < _LOOK_AT[2]:
            return step + 1
        return self._looks[0] if self._looks else NEVER

    def _measured(self, nbytes: int) -> None:
        """Bytes that a forward left allocated."""
        self._activations = nbytes

    def write(self) -> None:
        """One fact with the peaks so far."""
        state = state_bytes(self._config.optimizers, self._config.modules)
        for kind, sizes in state.items():
            kept = self._state.setdefault(kind, dict.fromkeys(sizes, 0))
            for name, size in sizes.items():
                kept[name] = max(kept[name], size)
        facts: dict[str, Any] = {"state": self._state, "activations_bytes": self._activations}
        if self._core.device.active:
            facts["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
            facts["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
            facts["retries"] = torch.cuda.memory_stats().get("num_alloc_retries", 0)
        self._core.facts.write("memory", **facts)
