"""torch.compile compiles the same code again and again."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._run import account, seconds, spent
from stepscope.diagnose.rules._step import sites
from stepscope.record.finding import Evidence, Finding, FixRef

_SOME = 2
_LIMIT = 8  # after as many of one function, Dynamo runs it uncompiled
_LEAST = 0.02


def _recompiles(case: Case) -> Iterable[Finding]:
    """Where code was compiled again twice or more, for 2% of the run or up to Dynamo's limit."""
    counted = (case.show or {}).get("compile") or {}
    again = int(counted.get("recompiles") or 0)
    if again < _SOME:
        return
    compiling = account(case).get("compile", 0.0)
    every = again + max(1, int(counted.get("graphs") or 0) - again)
    wasted = compiling * again / every
    whole = spent(case, "compile")
    share = wasted / whole.run_s if whole is not None else 0.0
    if share < _LEAST and again < _LIMIT:
        return
    yield Finding(
        id=RECOMPILES.id,
        title=f"torch.compile compiled again {again} times",
        why=(
            f"Shapes, numbers or flags that change from call to call made it compile {again} times "
            f"more than needed: about {seconds(wasted)} of the run"
            + ("; past its limit it gives up and runs eagerly." if again >= _LIMIT else ".")
        ),
        advice=(
            "Keep shapes the same (drop_last, padding to a few lengths), or compile with "
            "dynamic=True; TORCH_LOGS=recompiles says what changed."
        ),
        share=max(share, 0.0),
        evidence=(
            Evidence("recompilations", again),
            Evidence("compiling", compiling, "s"),
            Evidence("of that, again", wasted, "s"),
        ),
        where=sites(case, "forward"),
        fix=FixRef("compile", "default,dynamic"),
        effort="one argument",
        kind="numeric",
        confidence="medium",
        scope="run",
    )


RECOMPILES = Rule(
    id="launch.recompiles",
    cause="torch.compile compiles the same code again and again.",
    find=_recompiles,
)
