"""Checkpoint written."""

import functools
from typing import Any

import torch

from stepscope.probe.core import Core
from stepscope.probe.log import SAVE
from stepscope.probe.patches import Patches
from stepscope.probe.points.timing import timed
from stepscope.record.rows import Kind


def install(core: Core, patches: Patches) -> None:
    """Patch torch.save."""
    patches.set(torch, "save", timed_save(core, torch.save))


def install_safetensors(core: Core, patches: Patches, module: Any) -> None:
    """Patch the writers of safetensors.torch, once it is imported."""
    for name in ("save_file", "save_model"):
        if hasattr(module, name):
            patches.set(module, name, timed_save(core, getattr(module, name)))


def timed_save(core: Core, original: Any) -> Any:
    """A function that writes a checkpoint, timed as `save`; a nested one counts once."""

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        try:
            return timed(core, SAVE, "save", original, args, kwargs)
        finally:
            if core.log.observed() and core.log.depth == 0:
                core.end_row(Kind.SAVE)

    return save
