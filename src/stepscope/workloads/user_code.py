"""The user's own file or module, imported as a script beside it would import it."""

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from stepscope.workloads.workload import Workload


def module_of(workload: Workload) -> ModuleType:
    """Where the workload's factory is defined. Raises what the user's code raises."""
    if "module" in workload.options:
        sys.path.insert(0, "")
        return import_module(workload.options["module"])
    path = Path(workload.options["file"]).resolve()
    sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_of_the_user"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} cannot be imported")
    module = module_from_spec(spec)
    sys.modules[name] = module  # where workers and pickles look classes up
    spec.loader.exec_module(module)
    return module
