"""Whose code a Python frame of a recording is."""

import re
import sys
from typing import Final

_FRAME: Final = re.compile(r"(.+)\(\d+\): ")
# Kineto cuts the path of an installed package down to its name.
_LIBRARIES: Final = (
    "torch", "torchvision", "torchaudio", "torchtext", "torchmetrics", "functorch", "triton",
    "numpy", "scipy", "pandas", "PIL", "transformers", "accelerate", "lightning",
    "pytorch_lightning", "lightning_fabric", "timm", "deepspeed", "apex", "tqdm", "einops",
    "datasets", "ignite", "fastai", "stepscope", "_pytest", "pluggy",
)  # fmt: skip
# Standard modules that people also name their own scripts after.
_OFTEN_OWN: Final = ("test", "code", "trace", "profile", "cmd", "main", "select", "statistics")


def is_users_frame(name: str) -> bool:
    """Whether a Python frame is of the program itself, not of Python or of a library."""
    frame = _FRAME.match(name)
    if frame is None or name.startswith("<"):
        return False
    path = frame[1].replace("\\", "/")
    if "-packages/" in path or "/lib/python" in path:
        return False
    first = path.removeprefix("./").split("/")[0].removesuffix(".py")
    ours = first in _OFTEN_OWN and "/" not in path
    return ours or not (first in _LIBRARIES or first in sys.stdlib_module_names)
