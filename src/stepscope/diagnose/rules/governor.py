"""The processor is set to save power while the step waits for it."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._machine import cpu_facts, waiting_for_host
from stepscope.record.finding import Evidence, Finding

_SAVING = ("powersave", "conservative")
_MATTERS = 0.1


def _cpu_governor(case: Case) -> Iterable[Finding]:
    """Where a saving governor rules and the host decides a tenth of the step or more."""
    governor = cpu_facts(case).get("governor")
    share = waiting_for_host(case)
    if governor not in _SAVING or share < _MATTERS:
        return
    yield Finding(
        id=CPU_GOVERNOR.id,
        title=f"The CPU governor is {governor}",
        why=(
            f"The host decides {share:.0%} of the step, and its cores raise their clocks late or "
            "not at all under this setting (some drivers' powersave does, so measure)."
        ),
        advice="As root: cpupower frequency-set -g performance; then measure again.",
        share=0.0,
        evidence=(
            Evidence("governor", str(governor)),
            Evidence("of the step that the host decides", share * 100, "%"),
        ),
        effort="outside the program",
        kind="none",
        confidence="low",
        scope="machine",
    )


CPU_GOVERNOR = Rule(
    id="machine.governor",
    cause="The processor is set to save power while the step waits for it.",
    find=_cpu_governor,
)
