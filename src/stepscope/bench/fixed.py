"""How a program that times itself is started with fixes."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from stepscope.launch.program import environment
from stepscope.record.options import ProbeOptions


def environment_with(fixes: Sequence[str], folder: Path) -> dict[str, str]:
    """Its environment: the probe comes along only where there are fixes, and writes to `folder`."""
    from stepscope.fixes import catalogue

    if not fixes:
        return dict(os.environ)
    options = ProbeOptions(
        folder=str(folder.absolute()),
        launched_ns=time.monotonic_ns(),
        window=0,
        stacks=0,
        clocks=False,
        fixes=tuple(fixes),
    )
    return environment(options.to_json(), catalogue.environment(catalogue.parse(fixes)))
