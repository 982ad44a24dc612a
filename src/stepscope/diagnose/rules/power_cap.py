"""The GPU's power limit holds its clocks down."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._machine import gpu_facts, gpu_used
from stepscope.record.finding import Evidence, Finding

_AT_IT = 0.85  # of the limit: a cap met only for moments says little of the step


def _power_cap(case: Case) -> Iterable[Finding]:
    """Where the cap was met and the mean power lies close to it."""
    gpu, limit = gpu_used(case), gpu_facts(case).get("power_limit_w")
    power = gpu.get("power_w")
    if "power cap" not in (gpu.get("throttled_by") or []) or not power or not limit:
        return
    if power < _AT_IT * limit:
        return
    yield Finding(
        id=POWER_CAP.id,
        title=f"The GPU runs into its power limit of {limit:.0f} W",
        why=(
            f"It drew {power:.0f} W on average and lowered its clocks to stay within "
            f"{limit:.0f} W: the device gives what it may."
        ),
        advice=(
            "Raise the limit where the card's maximum allows (nvidia-smi -pl, as root); work with "
            "fewer bytes and bits (bf16, fused kernels) needs less power for the same step."
        ),
        share=0.0,
        evidence=(
            Evidence("mean power", power, "W"),
            Evidence("limit", limit, "W"),
            *([Evidence("clock", gpu["sm_mhz"], "MHz")] if gpu.get("sm_mhz") else ()),
        ),
        effort="outside the program",
        kind="none",
        confidence="medium",
        scope="machine",
    )


POWER_CAP = Rule(
    id="machine.power_cap",
    cause="The GPU's power limit holds its clocks down.",
    find=_power_cap,
)
