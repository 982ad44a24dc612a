"""The program may run on cores far from its GPU."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._machine import copies_share, cpu_facts, gpu_facts, waiting_for_host
from stepscope.hardware.cpu import cpu_list
from stepscope.record.finding import Evidence, Finding, FixRef

_MATTERS = 0.05  # of the step that host or copies decide


def _numa_remote(case: Case) -> Iterable[Finding]:
    """Where there are several nodes, the GPU's is known, and the program may leave its cores."""
    gpu, cpu = gpu_facts(case), cpu_facts(case)
    nodes, node = int(cpu.get("numa_nodes") or 1), gpu.get("numa_node")
    near = len(cpu_list(str(gpu.get("cpu_affinity") or "")))
    usable = float(cpu.get("usable_cores") or 0)
    if case.device != "cuda" or nodes < 2 or node is None or not near or usable <= near:
        return
    share = min(1.0, copies_share(case) + waiting_for_host(case))
    if share < _MATTERS:
        return
    yield Finding(
        id=NUMA_REMOTE.id,
        title=f"The program is not held on the GPU's NUMA node {node}",
        why=(
            f"It may use {usable:.0f} cores on {nodes} nodes, and only {near} are next to the GPU: "
            "launches and copies from the others go over the link between the sockets."
        ),
        advice=f"Start it with numactl --cpunodebind={node} --membind={node}, or try the fix.",
        share=0.0,
        evidence=(
            Evidence("NUMA nodes", nodes),
            Evidence("cores next to the GPU", str(gpu["cpu_affinity"])),
            Evidence("usable cores", usable),
            Evidence("of the step that host and copies decide", share * 100, "%"),
        ),
        fix=FixRef("affinity"),
        effort="one line",
        kind="exact",
        confidence="low",
        scope="machine",
    )


NUMA_REMOTE = Rule(
    id="machine.numa_remote",
    cause="The program may run on cores far from its GPU.",
    find=_numa_remote,
)
