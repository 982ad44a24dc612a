"""The weights of a model's convolutions, put into another memory format and back, in place."""

from typing import Any

from stepscope.fixes.layout_convolutions import convolution_weights


class Weights:
    """A model's convolution weights; the parameters stay the same objects with the same values."""

    def __init__(self, module: Any) -> None:
        import torch

        self._formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        self._weights = [w for w in convolution_weights(module) if w.dim() in self._formats]
        self._last = False
        self.dims = {weight.dim() for weight in self._weights}
        """4 where there are convolutions over images, 5 where over volumes."""

    def channels_last(self) -> None:
        """Channels become the fastest dimension."""
        self._last = True
        self._arrange()

    def contiguous(self) -> None:
        """As they were made."""
        self._last = False
        self._arrange()

    def arrange_state(self, optimizer: Any) -> None:
        """An optimizer's averages like the weights they belong to: fused kernels want that."""
        import torch

        for weight in self._weights:
            state = optimizer.state.get(weight)
            for key, value in (state or {}).items():
                if isinstance(value, torch.Tensor) and value.shape == weight.shape:
                    with torch.inference_mode(value.is_inference()):
                        state[key] = self._arranged(value)

    def _arrange(self) -> None:
        """A model that is first called in inference mode may be trained later."""
        import torch

        for weight in self._weights:
            with torch.inference_mode(weight.is_inference()):
                weight.data = self._arranged(weight.data)
                if weight.grad is not None:
                    weight.grad.data = self._arranged(weight.grad.data)

    def _arranged(self, tensor: Any) -> Any:
        import torch

        wanted = self._formats[tensor.dim()] if self._last else torch.contiguous_format
        arranged = tensor.contiguous(memory_format=wanted)
        # Where a dimension is 1 either format will do, but gradients come in the wanted one's
        # strides, and fused optimizers compare those.
        strides = torch.empty(tensor.shape, device="meta", memory_format=wanted).stride()
        return arranged.as_strided(tensor.shape, strides)
