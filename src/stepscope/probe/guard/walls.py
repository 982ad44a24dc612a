"""The walls this machine offers around a trial's writes. A wall is set up in the trial's own
process, covers everything it starts, and cannot be removed."""

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterable
from functools import cache
from typing import Final

from stepscope.probe.guard.landlock import enter_landlock
from stepscope.probe.guard.namespaces import enter_namespaces
from stepscope.record.probe_options import Wall

_WALLS: Final = {Wall.NAMESPACES: enter_namespaces, Wall.LANDLOCK: enter_landlock}
"""In the order in which they are preferred."""


def enter_wall(wall: Wall, folders: Iterable[str]) -> None:
    """Refuse all writes outside `folders` from here on. Raises OSError where that cannot be. To be
    called while there is one thread."""
    if wall in _WALLS:
        _WALLS[wall](folders)


@cache
def find_wall() -> Wall:
    """The best available wall, found by trying."""
    if sys.platform != "linux" or not _driver_is_up():
        return Wall.NONE
    return next((wall for wall in _WALLS if _holds(wall)), Wall.NONE)


def _holds(wall: Wall) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking beside threads: it only calls the kernel
        child = os.fork()
    if child == 0:
        code = 1
        try:
            enter_wall(wall, ())
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


_DRIVER, _DEVICE = "/proc/driver/nvidia/version", "/dev/nvidia-uvm"


def _driver_is_up() -> bool:
    """Whether the GPU's driver, if there is one, has its devices. The first CUDA program has a
    helper make them, with privileges that no wall lets through: so it is called before."""
    if not os.path.exists(_DRIVER) or os.path.exists(_DEVICE):
        return True
    if helper := shutil.which("nvidia-modprobe"):
        subprocess.run([helper, "-u", "-c=0"], stdin=subprocess.DEVNULL, capture_output=True)
    return os.path.exists(_DEVICE)
