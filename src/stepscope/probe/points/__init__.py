"""The patch points: the only place that touches torch's functions."""

from stepscope.probe.core import Core
from stepscope.probe.patches import Patches
from stepscope.probe.points.autograd import install as patch_backward
from stepscope.probe.points.compiler import install as patch_compile
from stepscope.probe.points.loader import install as patch_loaders
from stepscope.probe.points.module import install as patch_root_models
from stepscope.probe.points.optimizer import install as patch_optimizers
from stepscope.probe.points.saving import install as patch_saving
from stepscope.probe.points.waiting import install as patch_waits


def install(core: Core, patches: Patches) -> None:
    """Put every point in place. torch has been imported."""
    patch_loaders(core, patches)
    patch_root_models(core, patches)
    patch_backward(core, patches)
    patch_optimizers(core, patches)
    patch_compile(core, patches)
    patch_saving(core, patches)
    patch_waits(core, patches)
