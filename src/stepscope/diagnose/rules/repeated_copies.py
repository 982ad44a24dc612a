"""The same data is copied to the device in every step."""

from collections.abc import Iterable

from stepscope.analyze.whatif import changes
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rank import LEAST
from stepscope.diagnose.rules._copies import repeated
from stepscope.diagnose.rules._step import part
from stepscope.diagnose.rules._waitgain import evidence
from stepscope.record.finding import Finding, Predicted


def _repeated_copies(case: Case) -> Iterable[Finding]:
    """Where a line of the loop copies what no line of the loop changes."""
    found = repeated(case)
    some = [wait for wait, _ in found]
    lost_ms = sum(wait.ms for wait in some)
    if not some or part(case, lost_ms) < LEAST:
        return
    predicted = _without(case, lost_ms)
    if predicted is None:
        return
    names = ", ".join(dict.fromkeys(f"`{name}`" for _, name in found))
    yield Finding(
        id=REPEATED_COPIES.id,
        title="The same data is copied to the GPU in every step",
        why=(
            f"{names} {'is' if len(found) == 1 else 'are'} moved to the device anew for"
            f" {in_ms(lost_ms)} ms of each step, though nothing in the loop changes it."
        ),
        advice=(
            "Move it once, before the loop; in a module, register it as a buffer"
            " (`self.register_buffer`), which moves with the model."
        ),
        share=part(case, lost_ms),
        evidence=evidence(some),
        where=tuple(dict.fromkeys(wait.place for wait in some))[:6],
        predicted=predicted,
        effort="one line" if len(some) == 1 else "some lines",
        kind="exact",
        confidence="medium",
    )


REPEATED_COPIES = Rule(
    id="transfer.repeated_copies",
    cause="The same data is copied to the device in every step.",
    find=_repeated_copies,
)


def _without(case: Case, lost_ms: float) -> Predicted | None:
    """The step without what is lost there, as far as the replay of no copies at all goes."""
    step_ms = case.step_ms - lost_ms
    if case.model is not None:
        none = case.predict(changes.unblock_copies(), changes.scale_copies("HtoD", 0.0), words="")
        step_ms = max(step_ms, none.step_ms if none is not None else case.step_ms)
    return case.reach(step_ms, words="nothing is copied that is there already", doubt=0.5)
