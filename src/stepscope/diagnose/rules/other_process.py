"""Another process computes on the same GPU."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._machine import gpu_used
from stepscope.record.finding import Evidence, Finding


def _other_gpu_process(case: Case) -> Iterable[Finding]:
    """At any that was seen while steps ran."""
    gpu = gpu_used(case)
    others = int(gpu.get("other_processes") or 0)
    if others < 1:
        return
    many = f"{others} other processes use" if others > 1 else "Another process uses"
    yield Finding(
        id=OTHER_GPU_PROCESS.id,
        title=f"{many} this GPU",
        why=(
            "They take turns with this program's kernels and share its memory, so steps are longer "
            "than they need be, by an amount nobody can tell from here."
        ),
        advice="Find them with nvidia-smi; wait, or choose a free GPU by CUDA_VISIBLE_DEVICES.",
        share=0.0,
        evidence=(Evidence("other processes", others),),
        effort="outside the program",
        kind="none",
        confidence="high",
        scope="machine",
    )


OTHER_GPU_PROCESS = Rule(
    id="machine.other_process",
    cause="Another process computes on the same GPU.",
    find=_other_gpu_process,
)
