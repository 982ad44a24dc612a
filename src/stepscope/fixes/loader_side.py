"""Copies of the next batch to the GPU on a stream of their own."""

from typing import Any

from stepscope.fixes.data_moves import Move


class CudaSide:
    """One stream per GPU beside the program's."""

    def __init__(self) -> None:
        self._streams: dict[Any, Any] = {}

    def reaches(self, device: Any) -> bool:
        """Whether copies to a device can go beside the program's work."""
        return bool(device.type == "cuda")

    def copy(self, tensor: Any, move: Move) -> tuple[Any, Any]:
        """The tensor where the program will want it, and an event that says when it is there."""
        import torch

        stream = self._streams.get(move.device)
        if stream is None:
            stream = self._streams[move.device] = torch.cuda.Stream(move.device)
        with torch.cuda.stream(stream), torch.inference_mode(False):
            copied = _copied(tensor, move)
            event = torch.cuda.Event()
            event.record(stream)
        return copied, event

    def take(self, copied: Any, event: Any) -> Any:
        """A copy for the program's stream; its memory is kept until that has used it.

        It was begun a batch ago. Should it still go on, it is waited for, as the program's own
        copy would have been: afterwards the program may change the tensor it was made from.
        """
        import torch

        if not event.query():
            event.synchronize()
        copied.record_stream(torch.cuda.current_stream(copied.device))
        return copied


def _copied(tensor: Any, move: Move) -> Any:
    # torch's own method: a copy made early is not one the program makes.
    import torch

    form = {} if move.memory_format is None else {"memory_format": move.memory_format}
    return torch._C.TensorBase.to(tensor, move.device, move.dtype, non_blocking=True, **form)
