"""Found by the child's interpreter before the program starts; hands over to the probe. It first
removes itself: sys.path and the environment are as under plain Python, and the user's own
sitecustomize still runs."""

import os
import sys
from importlib import import_module


def _step_aside() -> str | None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    options = os.environ.pop("STEPSCOPE_PROBE", None)
    path = os.environ.pop("STEPSCOPE_PYTHONPATH", None)
    if path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = path
    ours = sys.modules.pop("sitecustomize")
    try:
        import_module("sitecustomize")
    except ImportError as problem:
        if problem.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours  # until the end of this file
    return options


_options = _step_aside()
if _options is not None:
    from stepscope.launch.bootstrap import start_probe

    start_probe(_options)
if vars(sys.modules["sitecustomize"]) is globals():
    # site.py ignores this error, and the import system drops this module.
    raise ImportError("there is no sitecustomize", name="sitecustomize")
