"""Recording CUDA graphs."""

import warnings
from collections.abc import Callable
from typing import Any


class Recorder:
    """Runs functions ahead of recording, records them, and cleans up where that fails."""

    kind = "cuda"

    def __init__(self) -> None:
        self._pool: Any = None

    @staticmethod
    def available() -> bool:
        """Whether there is a device that has graphs."""
        import torch

        return bool(torch.cuda.is_available())

    def try_out(self, function: Callable[[], Any]) -> None:
        """Run a function on a stream of its own, first freely, then so that waiting raises."""
        import torch

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        mode = torch.cuda.get_sync_debug_mode()
        try:
            with torch.cuda.stream(stream):
                function()
                with warnings.catch_warnings(action="ignore"):  # it says that it is new
                    torch.cuda.set_sync_debug_mode("error")
                function()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
            torch.cuda.current_stream().wait_stream(stream)
            stream.synchronize()

    def record(self, function: Callable[[], Any]) -> tuple[Any, Any]:
        """A graph of what a function does on the device, and its result: it has not run yet.

        Only this thread is watched: a loader's threads may go on pinning memory meanwhile.
        """
        import torch

        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        before = torch.cuda.current_stream()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = function()
        except Exception:
            torch.cuda.set_stream(before)
            _end_capture()
            raise
        return graph, result


def _end_capture() -> None:
    """A capture that failed leaves the random generator waiting for its end: give it one."""
    import torch

    before = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            torch.zeros(1, device="cuda")
    except Exception:
        torch.cuda.set_stream(before)
