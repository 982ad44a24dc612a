"""A fix: autograd's anomaly detection off."""

from typing import Any

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ObservedProgram, unsuitable
from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.record.fix import Applied, Reason, Target
from stepscope.record.trial import Rejection

ANOMALY_DETECTION = Target("anomaly_detection", "anomaly detection{at}")
NO_BACKWARD = Reason("no_backward", "no backward pass")


class AnomalyOff(Fix):
    """Anomaly detection records a stack trace for every operator and checks gradients for NaN."""

    name = "anomaly_off"
    group = "waiting"
    title = "turn autograd's anomaly detection off"
    kind = FixKind.EXACT
    effort = "one line removed"
    missing = "the program does not detect anomalies"
    inside_of = "nosync"
    only_if_found = True

    def applies(self, program: ObservedProgram) -> Rejection | None:
        return None if program.trains else unsuitable(NO_BACKWARD)

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """A prior: backward takes half as long."""
        from stepscope.analyze.replay.changes import scale_phase

        return [scale_phase("backward", 0.5)]

    def install(self, value: Any, context: FixContext) -> None:
        import torch

        def asked(call: Any, mode: bool, check_nan: bool = True) -> None:
            call(False, check_nan)
            if mode:
                context.applied(Applied(ANOMALY_DETECTION, place=context.place()))

        context.seams.around(torch, "set_anomaly_enabled", asked)

    def edit(self, value: Any, line: str) -> SourceEdit:
        return SourceEdit("remove torch.autograd.set_detect_anomaly(True)")


FIX = AnomalyOff()
