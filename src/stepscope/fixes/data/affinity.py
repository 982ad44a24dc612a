"""Keep the program, and the workers it starts, on the cores next to its GPU."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit
from stepscope.fixes.inspect.devices import gpu_numa_node, move_threads, numa_nodes
from stepscope.record.fix import Applied, NotApplied, Reason, Target

CORES = Target("cores", "{count} of {all} cores: those of the GPU's NUMA node {after}")
NO_AFFINITY = Reason("no_affinity", "this system has no CPU affinity")
ONE_NUMA_NODE = Reason("one_numa_node", "this machine has one NUMA node")
GPU_NODE_UNKNOWN = Reason("gpu_node_unknown", "the GPU's NUMA node is unknown")
CORES_NOT_ALLOWED = Reason(
    "cores_not_allowed", "this process may not use the cores of the GPU's NUMA node {value}"
)
ON_NODE_ALREADY = Reason(
    "on_node_already", "the program already runs on the GPU's NUMA node {value} only"
)


class Affinity(Fix):
    """Memory on another NUMA node is slower to access, also for copies to the GPU."""

    name = "affinity"
    group = "data"
    title = "run on the cores of the GPU's NUMA node"
    edited_by_call = True
    kind = FixKind.EXACT
    effort = "one line, or numactl in front of the program"
    needs = "cuda"
    missing = "no cores to choose from"
    acts_in_step = False
    only_if_found = True

    def check(self, live: LiveProgram) -> NotApplied | None:
        _, record = _choice()
        return record if isinstance(record, NotApplied) else None

    def install(self, value: Any, context: FixContext) -> None:
        cpus, record = _choice()
        if isinstance(record, Applied):
            move_threads(cpus)
            context.applied(record)
        else:
            context.not_applied(record)

    def edit(self, value: Any, line: str) -> SourceEdit:
        node = gpu_numa_node(os.environ)
        known = f"={node}`" if node is not None else "=N`, N being the GPU's node"
        return SourceEdit(f"start the program with `numactl --cpunodebind{known}")


def _choice() -> tuple[set[int], Applied | NotApplied]:
    if not hasattr(os, "sched_setaffinity"):
        return set(), NotApplied(NO_AFFINITY)
    return cores_near_gpu(os.environ, os.sched_getaffinity(0))


def cores_near_gpu(
    environ: Mapping[str, str], allowed: set[int], root: Path = Path("/")
) -> tuple[set[int], Applied | NotApplied]:
    """The cores to use and the record of it; or none, and the reason, if there is nothing to
    gain."""
    found = numa_nodes(root)
    if len(found) < 2:
        return set(), NotApplied(ONE_NUMA_NODE)
    node = gpu_numa_node(environ, root)
    if node is None or node not in found:
        return set(), NotApplied(GPU_NODE_UNKNOWN)
    near = found[node] & allowed
    if not near:
        return set(), NotApplied(CORES_NOT_ALLOWED, value=node)
    if near == allowed:
        return set(), NotApplied(ON_NODE_ALREADY, value=node)
    return near, Applied(CORES, count=len(near), total=len(allowed), after=node)


FIX = Affinity()
