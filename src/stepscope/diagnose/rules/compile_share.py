"""torch.compile takes a good part of the run."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._run import places, seconds, spent
from stepscope.record.finding import Evidence, Finding

_LARGE = 0.1
_FEW = 2  # recompilations: one for dynamic shapes and one for evaluation are usual


def _compile_share(case: Case) -> Iterable[Finding]:
    """Where it is more than 10% of the run, and not for compiling the same again and again."""
    told = spent(case, "compile")
    counted = (case.show or {}).get("compile") or {}
    again = int(counted.get("recompiles") or 0)
    if told is None or told.share < _LARGE or again > _FEW:
        return
    graphs = counted.get("graphs")
    yield Finding(
        id=COMPILE_SHARE.id,
        title=f"Compiling takes {told.share:.0%} of the run",
        why=(
            f"torch.compile worked for {seconds(told.seconds)} of {seconds(told.run_s)}; a run of "
            "this length has few steps to gain that back in."
        ),
        advice=(
            "Keep the compiled code between runs (a TORCHINDUCTOR_CACHE_DIR that stays when the "
            "machine goes), compile only the repeated block, or leave short "
            f"runs uncompiled: this one would take {seconds(told.run_s - told.seconds)} and what "
            "its steps then lose."
        ),
        share=told.share,
        evidence=(
            Evidence("compiling", told.seconds, "s"),
            *([Evidence("graphs", int(graphs))] if graphs is not None else ()),
            Evidence("the run without recording", told.run_s, "s"),
        ),
        where=places(case, "compile"),
        effort="an environment variable",
        kind="exact",
        confidence="medium",
        scope="run",
    )


COMPILE_SHARE = Rule(
    id="run.compile_share",
    cause="torch.compile takes a good part of the run.",
    find=_compile_share,
)
