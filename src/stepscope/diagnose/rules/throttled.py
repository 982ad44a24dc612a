"""The GPU held its clocks down during the run."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._machine import gpu_used
from stepscope.record.finding import Evidence, Finding

_POWER = "power cap"  # a rule of its own
_HEAT = ("thermal", "hardware slowdown")


def _gpu_throttled(case: Case) -> Iterable[Finding]:
    """At any reason but the power cap. How much it cost is not known: no clock to compare with."""
    gpu = gpu_used(case)
    reasons = [reason for reason in gpu.get("throttled_by") or [] if reason != _POWER]
    if not reasons:
        return
    hot = any(reason.startswith(_HEAT) or "thermal" in reason for reason in reasons)
    yield Finding(
        id=GPU_THROTTLED.id,
        title=f"The GPU was slowed down: {', '.join(reasons)}"[:60],
        why="The GPU lowered its clocks while steps ran: all numbers here are of a slower device.",
        advice=(
            "See to its cooling (fans, airflow, dust, a lower power limit) and measure again."
            if hot
            else "Ask who runs the machine about power supply and clock settings; measure again."
        ),
        share=0.0,
        evidence=(
            Evidence("reasons", ", ".join(reasons)),
            *_known(gpu, ("temperature_c", "hottest", "°C"), ("sm_mhz", "clock", "MHz")),
        ),
        effort="outside the program",
        kind="none",
        confidence="high",
        scope="machine",
    )


GPU_THROTTLED = Rule(
    id="machine.throttled",
    cause="The GPU held its clocks down during the run.",
    find=_gpu_throttled,
)


def _known(gpu: dict[str, object], *wanted: tuple[str, str, str]) -> list[Evidence]:
    found = ((gpu.get(key), what, unit) for key, what, unit in wanted)
    return [Evidence(what, float(str(value)), unit) for value, what, unit in found if value]
