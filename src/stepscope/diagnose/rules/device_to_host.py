"""Many tensors a step are brought back to the host, one by one."""

from collections.abc import Iterable

from stepscope.analyze.whatif.changes import scale_copies
from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._waitfinding import often, waits_of
from stepscope.diagnose.rules._waitgain import lost
from stepscope.diagnose.rules._waits import grouped
from stepscope.record.finding import Finding

_SELDOM = 0.1  # of the steps: how often it would do to look at them


def _device_to_host(case: Case) -> Iterable[Finding]:
    """Where at least four tensors come back in a step."""
    some = grouped(case).get("chatter", [])
    return waits_of(
        case,
        "chatter",
        name=DEVICE_TO_HOST.id,
        title="Many small copies go back from the GPU",
        why=(
            f"Tensors are copied to the host{often(some)}, each with a wait of its own:"
            f" {lost(some)}."
        ),
        advice=(
            "Put together what is wanted on the device (torch.stack, torch.cat) and bring it back"
            " in one copy, every ten steps where that will do."
        ),
        words="tensors come back in one step of ten, and the host goes on meanwhile",
        besides=(scale_copies("DtoH", _SELDOM),),
    )


DEVICE_TO_HOST = Rule(
    id="transfer.device_to_host",
    cause="Many tensors a step are brought back to the host, one by one.",
    find=_device_to_host,
)
