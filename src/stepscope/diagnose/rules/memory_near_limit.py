"""The device's memory is all but full, or was not enough."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._memory import Memory, amount, memory
from stepscope.record.finding import Evidence, Finding, FixRef

_FULL = 0.92  # batches of other lengths, evaluation and the CUDA context want the rest


def _memory_near_limit(case: Case) -> Iterable[Finding]:
    """From 92% on, or when the program ran out of memory. It costs no time, but may end the run."""
    known = memory(case)
    failed = ((case.show or {}).get("run") or {}).get("out_of_memory")
    if known is None or (known.full < _FULL and not failed):
        return
    where = "The GPU" if known.device == "cuda" else "The host"
    yield Finding(
        id=MEMORY_NEAR_LIMIT.id,
        title=f"{where} ran out of memory"
        if failed
        else f"{where}'s memory is {known.full:.0%} full",
        why=(
            f"{amount(known.peak)} of {amount(known.total)} were in use at the peak; a longer "
            "batch ends the run, and a full allocator gives memory back and asks for it again."
        ),
        advice=_advice(known),
        share=0.0,
        evidence=(
            Evidence("peak", known.peak, "bytes"),
            Evidence("there is", known.total, "bytes"),
            *(Evidence(name, value, "bytes") for name, value in _largest(known)),
        ),
        fix=FixRef("checkpointing") if known.share("activations") > 0.5 else None,
        effort="some lines",
        kind="exact",
        confidence="high",
        scope="run",
    )


MEMORY_NEAR_LIMIT = Rule(
    id="memory.near_limit",
    cause="The device's memory is all but full, or was not enough.",
    find=_memory_near_limit,
)


def _largest(known: Memory) -> list[tuple[str, float]]:
    return sorted(known.owners.items(), key=lambda pair: -pair[1])[:2]


def _advice(known: Memory) -> str:
    if known.share("activations") > 0.5:
        return "Recompute activations in backward (checkpointing), or accumulate smaller batches."
    if known.share("optimizer_state") > 0.4:
        return "Take an optimizer with a smaller state, or shard it over several devices."
    return "Take a smaller batch and accumulate, or lower precision; `--memory` names the lines."
