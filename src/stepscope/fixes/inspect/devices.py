"""Which devices a program can use, found out without a trace in its process."""

import os
import sys
from pathlib import Path

from stepscope.fixes.lazy import torch

_DRIVER = Path("/dev/nvidiactl")
HIDDEN = ("", "-1")  # CUDA_VISIBLE_DEVICES of a program that is to see no GPU


def cuda_here() -> bool:
    """Whether CUDA is there to be used. Asking torch starts threads of the driver, of which Python
    warns a program that forks before it uses CUDA."""
    if torch.cuda.is_initialized():
        return True
    if sys.platform != "linux" or torch.version.hip is not None:
        return bool(torch.cuda.device_count())
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in HIDDEN
    return torch.version.cuda is not None and not hidden and _DRIVER.exists()
