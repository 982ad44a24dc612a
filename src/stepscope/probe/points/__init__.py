"""The patch points: the only place that touches torch's functions."""

from stepscope.probe.core import Core
from stepscope.probe.patches import Patches
from stepscope.probe.points import autograd, compiler, loader, module, optimizer, saving, waiting


def install(core: Core, patches: Patches) -> None:
    """Put every point in place. torch has been imported."""
    for point in (loader, module, autograd, optimizer, compiler, saving, waiting):
        point.install(core, patches)
