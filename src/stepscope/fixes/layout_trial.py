"""A first call that can be taken back: random numbers and buffers as they were before."""

from typing import Any


class Before:
    """The random state and a model's buffers at some moment."""

    def __init__(self, module: Any) -> None:
        import torch
        from torch.nn.parameter import is_lazy

        self._buffers = [(b, b.clone()) for b in module.buffers() if not is_lazy(b)]
        self._cpu = torch.get_rng_state()
        self._devices = {
            device: torch.cuda.get_rng_state(device)
            for device in {p.device for p in module.parameters() if p.is_cuda}
        }

    def restore(self) -> None:
        """Put everything back."""
        import torch

        with torch.no_grad():
            for buffer, kept in self._buffers:
                buffer.copy_(kept)
        torch.set_rng_state(self._cpu)
        for device, state in self._devices.items():
            torch.cuda.set_rng_state(state, device)
