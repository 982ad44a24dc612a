"""The built-in workloads, and how any workload is found by what the user wrote. No torch here."""

from difflib import get_close_matches

from stepscope.record.errors import UsageError
from stepscope.workloads import foreign
from stepscope.workloads.builtin import BUILT_IN
from stepscope.workloads.workload import Workload

__all__ = ["WORKLOADS", "Workload", "find"]

_ELSEWHERE = "file.py:factory, module:factory, torchvision:NAME, timm:NAME, hf:NAME"
WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in BUILT_IN}


def find(spec: str) -> Workload:
    """The workload of a built-in name, file.py:factory, module:factory or library:NAME.

    Raises UsageError in one line that says what is possible, the nearest name first.
    """
    if spec in WORKLOADS:
        return WORKLOADS[spec]
    library, _, name = spec.partition(":")
    if library in foreign.LIBRARIES:
        if not name:
            raise UsageError(f"{spec}: name one of its models, {library}:NAME")
        return foreign.LIBRARIES[library](spec, name)
    head, colon, rest = spec.rpartition(":")
    if head.endswith(".py"):
        return foreign.from_file(spec, head, rest)
    if spec.endswith(".py"):
        raise UsageError(f"{spec}: say what builds the model in it, {spec}:factory")
    if colon and head and rest and head not in WORKLOADS:
        return foreign.from_module(spec, head, rest)
    raise UsageError(_unknown(spec))


def _unknown(spec: str) -> str:
    near = get_close_matches(spec, WORKLOADS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? There are" if near else "there are"
    return f"no workload named {spec}: {hint} {', '.join(WORKLOADS)}; or {_ELSEWHERE}"
