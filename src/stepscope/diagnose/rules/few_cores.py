"""The processor cores this program may use cannot feed its GPU."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._machine import cpu_facts, data_wait_share, waiting_for_host
from stepscope.record.finding import Evidence, Finding

_BUSY = 0.85
_MATTERS = 0.1


def _few_cores(case: Case) -> Iterable[Finding]:
    """Where all usable cores are busy and the GPU waits for data all the same."""
    cpu = cpu_facts(case)
    usable = float(cpu.get("usable_cores") or 0)
    percent = ((case.show or {}).get("host") or {}).get("cpu_percent")
    if case.device != "cuda" or not usable or percent is None:
        return
    share = data_wait_share(case)
    if percent < _BUSY * 100 * usable or share < _MATTERS or waiting_for_host(case) < _MATTERS:
        return
    logical = float(cpu.get("logical_cores") or usable)
    limited = logical > usable
    yield Finding(
        id=FEW_CORES.id,
        title=f"All {usable:g} usable cores are busy making data",
        why=(
            f"The program and its workers use {percent / 100:.1f} of {usable:g} cores, and the GPU "
            f"still waits for data {share:.0%} of the step."
        ),
        advice=(
            f"The machine has {logical:g} cores; ask for more of them (container or job limits). "
            if limited
            else "More workers will not help. "
        )
        + "Make samples cheaper: decode and resize once, or augment on the GPU.",
        share=share,
        evidence=(
            Evidence("cores in use", percent / 100),
            Evidence("usable cores", usable),
            Evidence("cores of the machine", logical),
            Evidence("waiting for data", share * 100, "%"),
        ),
        effort="outside the program" if limited else "some lines",
        kind="none",
        confidence="medium",
        scope="machine",
    )


FEW_CORES = Rule(
    id="machine.few_cores",
    cause="The processor cores this program may use cannot feed its GPU.",
    find=_few_cores,
)
