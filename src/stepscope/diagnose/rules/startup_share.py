"""What comes before the first step takes a good part of the run."""

from collections.abc import Iterable, Mapping
from typing import Any

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._run import seconds, spent
from stepscope.record.finding import Evidence, Finding

_LARGE = 0.2
# Importing torch and waking the GPU take so long in any program, and nobody can mend that.
_USUAL_S = {"cpu": 1.0, "cuda": 4.0}


def _startup_share(case: Case) -> Iterable[Finding]:
    """Where the program's own preparation is a fifth of the run and longer than seconds.

    The slowest import counts as its own where it is not torch's.
    """
    whole = spent(case, "setup")
    if whole is None:
        return
    slowest = ((case.show or {}).get("account_places") or {}).get("imports") or {}
    foreign = slowest if not slowest.get("module", "torch").startswith("torch") else {}
    own = whole.seconds + foreign.get("seconds", 0.0)
    share = own / whole.run_s
    if share < _LARGE or own < _USUAL_S[case.device]:
        return
    yield Finding(
        id=STARTUP_SHARE.id,
        title=f"Getting ready takes {share:.0%} of the run",
        why=(
            f"{seconds(own)} of {seconds(whole.run_s)} go by before the first step, in the "
            f"program's own preparation{_importing(foreign)}."
        ),
        advice=(
            "Prepare the data once and keep the result (numpy.save, a memory map); build in one "
            f"operation what a loop builds. Without it this run would take "
            f"{seconds(whole.run_s - own)} instead of {seconds(whole.run_s)}; "
            "`stepscope run --python` names the functions."
        ),
        share=share,
        evidence=(
            Evidence("setup", whole.seconds, "s"),
            *(
                [Evidence(f"import of {foreign['module']}", foreign["seconds"], "s")]
                if foreign
                else ()
            ),
            Evidence("the run without recording", whole.run_s, "s"),
        ),
        effort="some lines",
        kind="exact",
        confidence="medium",
        scope="run",
    )


STARTUP_SHARE = Rule(
    id="run.startup_share",
    cause="What comes before the first step takes a good part of the run.",
    find=_startup_share,
)


def _importing(module: Mapping[str, Any]) -> str:
    return f" and in importing {module['module']}" if module else ""
