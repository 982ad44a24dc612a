"""Whether the program uses mixed precision of its own."""

from collections.abc import Callable
from typing import Any

from stepscope.fixes.base import Hands
from stepscope.fixes.lazy_callers import caller


def unwatched() -> Any:
    """torch's autocast for a fix's own use, as it is before it is watched."""
    import torch

    return type("autocast", (torch.autocast,), {"__enter__": torch.autocast.__enter__})


def watch(hands: Hands, found: Callable[[str], None]) -> None:
    """`found("autocast at file:line")` when the program turns autocast on or makes a GradScaler.

    What torch's own parts do, such as checkpoints that bring back the autocast they ran under,
    and what stepscope does is not the program's.
    """
    import torch

    folder = torch.__path__[0]

    def entered(call: Any, context: Any) -> Any:
        if getattr(context, "_enabled", False):
            frame = caller(__file__)
            while frame is not None and frame.f_code.co_filename.startswith(f"{folder}/amp/"):
                frame = frame.f_back  # autocast as a decorator
            if frame is not None and not frame.f_code.co_filename.startswith(folder):
                found(f"autocast at {hands.place()}")
        return call(context)

    def scaler_made(call: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
        call(scaler, *args, **kwargs)
        if scaler.is_enabled():
            found(f"a GradScaler at {hands.place()}")

    hands.seams.around(torch.autocast, "__enter__", entered)
    hands.seams.around(torch.amp.GradScaler, "__init__", scaler_made)
