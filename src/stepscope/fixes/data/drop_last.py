"""Leave out the last, smaller batch of an epoch."""

from typing import Any

from stepscope.fixes.applicability import ALREADY_ON, ObservedProgram, ProgramPart, unsuitable
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram
from stepscope.record.fix import (
    LOADER,
    NOT_BATCHED,
    OWN_BATCH_SAMPLER,
    Applied,
    NotApplied,
    Reason,
    TrainingChange,
)
from stepscope.record.trial import Rejection

DROPS_LAST_ALREADY = Reason("drops_last_already", "{subject} already drops the last batch")


class DropLast(Fix):
    """Gives all batches one shape, which suits compiled code and CUDA graphs."""

    name = "drop_last"
    group = "batch"
    title = "drop the last, smaller batch of an epoch"
    kind = FixKind.SEMANTIC
    effort = "one argument"
    missing = "no DataLoader forms batches"
    works_on = ProgramPart.LOADER
    argument = "drop_last"
    acts_in_step = False
    only_if_found = True
    training_change = TrainingChange.SAMPLES_LEFT_OUT

    def applies(self, program: ObservedProgram) -> Rejection | None:
        on = all(one.get("drop_last") for one in program.loaders)
        return unsuitable(ALREADY_ON) if on else None

    def check(self, live: LiveProgram) -> NotApplied | None:
        reason = None if live.loader is None else _refused(live.loader.arguments)
        return None if reason is None else NotApplied(reason, LOADER)

    def install(self, value: Any, context: FixContext) -> None:
        def made(arguments: dict[str, Any]) -> None:
            reason = _refused(arguments)
            if reason is not None:
                context.loader_not_applied(reason)
            else:
                arguments["drop_last"] = True
                context.applied(Applied(LOADER, place=context.place()))

        context.seams.loader_made(made)


def _refused(arguments: dict[str, Any]) -> Reason | None:
    """Why a loader keeps its last batch; None: it does not."""
    if arguments.get("batch_sampler") is not None:
        return OWN_BATCH_SAMPLER
    if arguments.get("batch_size", 1) is None:
        return NOT_BATCHED
    return DROPS_LAST_ALREADY if arguments.get("drop_last") else None


FIX = DropLast()
