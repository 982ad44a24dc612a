"""Answer `.item()` late where its value is merely summed."""

from types import CodeType
from typing import Any

from stepscope.fixes.base import Edit, Fix, Hands, Kind
from stepscope.fixes.lazy_callers import users_caller
from stepscope.fixes.lazy_number import Late
from stepscope.fixes.lazy_source import call_made_by
from stepscope.fixes.lazy_uses import why_needed


class LazyItem(Fix):
    """The host no longer waits for the device to have computed a loss it will print much later."""

    name = "lazyitem"
    group = "waiting"
    title = "answer .item() late where its value is merely summed"
    kind = Kind.EXACT
    effort = "two lines"
    needs = "cuda"
    missing = "nothing in the program's own code reads a CUDA scalar with .item()"
    devices: tuple[str, ...] = ("cuda",)
    """Where scalars are answered late: on a CPU there is nothing to wait for."""

    def install(self, value: Any, hands: Hands) -> None:
        import torch

        if self.devices == ("cuda",) and not torch.cuda.device_count():
            hands.unfit("there is no CUDA device here")
            return
        sites: dict[tuple[CodeType, int], bool] = {}
        plain_tensors = (torch.Tensor, torch.nn.Parameter)

        def item(call: Any, tensor: Any) -> Any:
            if type(tensor) not in plain_tensors or tensor.device.type not in self.devices:
                return call(tensor)
            frame = users_caller(__file__)
            if frame is None or tensor.numel() != 1 or tensor.is_complex():
                return call(tensor)
            site = (frame.f_code, frame.f_lasti)
            if site not in sites:
                sites[site] = self._judge(frame, hands)
            if not sites[site] or _capturing(tensor):
                return call(tensor)
            return Late(_begin_reading(tensor))

        hands.seams.around(torch.Tensor, "item", item)

    @staticmethod
    def _judge(frame: Any, hands: Hands) -> bool:
        """Whether the value read at a place may come late, said once."""
        found = call_made_by(frame)
        if found is None:
            hands.unfit(f"the source of .item() at {hands.place()} cannot be read")
            return False
        reason = why_needed(*found)
        if reason is not None:
            hands.unfit(f"the value of .item() at {hands.place()} {reason}")
            return False
        hands.applied(f".item() at {hands.place()}")
        return True

    def edit(self, value: Any, line: str) -> Edit:
        once = line.count(".item()") == 1
        return Edit(
            "add up the tensor itself, in float64 as Python would, and call .item() on the sum "
            "where it is printed",
            line.replace(".item()", ".detach().double()") if once else None,
        )


def _capturing(tensor: Any) -> bool:
    import torch

    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _begin_reading(tensor: Any) -> Any:
    """Start to copy a scalar to the host, in its turn on the stream; what waits for it."""
    import torch

    scalar = tensor.detach().reshape(())
    if not scalar.is_cuda:
        return scalar.clone().tolist
    host = torch.empty((), dtype=scalar.dtype, pin_memory=True)
    host.copy_(scalar, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(scalar.device))

    def get() -> Any:
        arrived.synchronize()
        return host.tolist()

    return get


FIX = LazyItem()
