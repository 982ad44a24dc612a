"""Keep the program, and the workers it starts, on the cores next to its GPU."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.fixes.inspect.cpus import gpu_numa_node, move_threads, numa_nodes


class Affinity(Fix):
    """Memory of another NUMA node is slower to reach, also for copies to the GPU."""

    name = "affinity"
    group = "data"
    title = "run on the cores of the GPU's NUMA node"
    kind = FixKind.EXACT
    effort = "one line, or numactl in front of the program"
    needs = "cuda"
    missing = "there is nothing to choose from"
    acts_in_step = False
    only_if_found = True

    def install(self, value: Any, hands: FixContext) -> None:
        import torch

        if not hasattr(os, "sched_setaffinity"):
            hands.unfit("this system does not let a program choose its cores")
        elif not torch.cuda.device_count():
            hands.unfit("there is no CUDA device here")
        else:
            cpus, text = cores_near_gpu(os.environ, os.sched_getaffinity(0))
            if cpus:
                move_threads(cpus)
                hands.applied(text)
            else:
                hands.unfit(text)

    def edit(self, value: Any, line: str) -> SourceEdit:
        node = gpu_numa_node(os.environ)
        cpus = numa_nodes().get(node, set()) if node is not None else set()
        if not cpus:
            return SourceEdit(
                "start the program with `numactl --cpunodebind=N`, N being the GPU's node"
            )
        return SourceEdit(
            f"start the program with `numactl --cpunodebind={node}`, or choose its cores first",
            before=("import os", f"os.sched_setaffinity(0, {_set(sorted(cpus))})"),
        )


def cores_near_gpu(
    environ: Mapping[str, str], allowed: set[int], root: Path = Path("/")
) -> tuple[set[int], str]:
    """The cores to use and what to say of them; none, and why, where the choice is no better."""
    found = numa_nodes(root)
    if len(found) < 2:
        return set(), "this machine has one NUMA node"
    node = gpu_numa_node(environ, root)
    if node is None or node not in found:
        return set(), "it is not known which NUMA node the GPU belongs to"
    near = found[node] & allowed
    if not near:
        return set(), f"this process may not use the cores of the GPU's NUMA node {node}"
    if near == allowed:
        return set(), f"the program runs on the GPU's NUMA node {node} only already"
    return near, f"{len(near)} of {len(allowed)} cores: those of the GPU's NUMA node {node}"


def _set(numbers: list[int]) -> str:
    """A set of numbers as Python, in short."""
    first, last = numbers[0], numbers[-1]
    if numbers == list(range(first, last + 1)):
        return f"range({first}, {last + 1})"
    return "{" + ", ".join(map(str, numbers)) + "}"


FIX = Affinity()
