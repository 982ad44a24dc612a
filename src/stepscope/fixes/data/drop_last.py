"""Leave out the last, smaller batch of an epoch."""

from typing import Any

from stepscope.fixes.applicability import ALREADY_ON, ObservedProgram, ProgramPart, unsuitable
from stepscope.fixes.base import Fix, FixContext, FixKind
from stepscope.record.fix import LOADER, NOT_BATCHED, OWN_BATCH_SAMPLER, Applied, TrainingChange
from stepscope.record.trial import Rejection


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

    def install(self, value: Any, context: FixContext) -> None:
        def made(arguments: dict[str, Any]) -> None:
            if arguments.get("batch_sampler") is not None:
                context.loader_not_applied(OWN_BATCH_SAMPLER)
            elif arguments.get("batch_size", 1) is None:
                context.loader_not_applied(NOT_BATCHED)
            elif not arguments.get("drop_last"):
                arguments["drop_last"] = True
                context.applied(Applied(LOADER, place=context.place()))

        context.seams.loader_made(made)


FIX = DropLast()
