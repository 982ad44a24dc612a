"""The API of `import stepscope` for programs and notebooks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.launch.bootstrap import AppliedFixes
    from stepscope.report.render.notebook.objects import BatchSizes, Result


def step() -> None:
    """Mark the end of a step, in a loop stepscope cannot see into. Does nothing when unobserved."""
    import sys

    module = sys.modules.get("stepscope.probe.observer")
    observer = module.current if module is not None else None
    if observer is not None:
        observer.core.marked()


def apply(*fixes: str) -> "AppliedFixes":
    """Apply fixes to this process as `stepscope run --fix` does, without observing it.

    `stepscope.apply("cuda_graph", "amp=bf16")` near the top of a program, before or after torch is
    imported. A fix that does not apply warns once, and the program runs without it; one that is
    applied already, here or by `--fix`, is applied once. Raises ValueError for names and values
    that `--fix` would refuse. The object returned says what each fix did so far.
    """
    import sys

    from stepscope.launch.bootstrap import apply_in_process
    from stepscope.record.errors import UsageError

    if not fixes or not all(isinstance(one, str) for one in fixes):
        raise ValueError('name fixes as --fix does: stepscope.apply("pin", "workers=4")')
    caller = sys._getframe(1)
    try:
        return apply_in_process(fixes, (caller.f_code.co_filename, caller.f_lineno))
    except UsageError as problem:
        from stepscope.fixes.registry import all_fixes

        known = [one.name for one in all_fixes(quiet=True)]
        named = all(text.partition("=")[0] in known for text in fixes)
        raise ValueError(
            str(problem) if named else f"{problem}; known: {', '.join(known)}"
        ) from None


class Observed:
    """A run made by `observe`, displayed once its block has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ended = False

    @property
    def document(self) -> dict[str, object] | None:
        """What `stepscope show --json` prints; None while the run is in progress."""
        return self.result.document if self.ended else None

    @cached_property
    def result(self) -> "Result":
        """The run as `load` returns it. Raises UsageError while it is in progress."""
        from stepscope.record.errors import UsageError

        if not self.ended:
            raise UsageError("the run is still in progress: read it after the with block")
        return load(self.folder)

    def __repr__(self) -> str:
        return (
            repr(self.result) if self.ended else f"<stepscope run {self.folder.name}, in progress>"
        )

    def _repr_html_(self) -> str | None:
        """None while in progress: then the text is shown."""
        return self.result._repr_html_() if self.ended else None


@contextmanager
def observe(
    out: str | Path | None = None,
    *,
    window: int = 6,
    steps: int | None = None,
    force: bool = False,
    program: str = "this process",
    overhead: float = 0.01,
) -> Iterator[Observed]:
    """Observe the code inside the `with`, as `stepscope run` observes a program.

    For notebooks and code that `stepscope run` cannot start. Yields the run, which shows itself
    once the block has ended. `steps` stops the block after that many; `program` names the run;
    `overhead` is the share of the time that observing may take.
    """
    import torch  # noqa: F401

    from stepscope.launch.observed_run import InProcessRun, refuse_nested
    from stepscope.probe.core import StopProgram
    from stepscope.record.probe_options import ProbeOptions
    from stepscope.store.folder import create_folder

    refuse_nested()
    folder = create_folder(None if out is None else Path(out), force, Path.cwd())
    observed = Observed(folder)
    options = ProbeOptions(
        folder=str(folder.absolute()),
        launched_ns=monotonic_ns(),
        window=window,
        steps=steps,
        overhead=overhead,
    )
    here = InProcessRun(options, program)
    here.begin()
    error: BaseException | None = None
    try:
        yield observed
    except StopProgram:
        pass
    except BaseException as raised:
        error = raised
        raise
    finally:
        here.end(error)
        observed.ended = True


def load(what: str | Path | None = None, *, redact: bool = False) -> "Result":
    """Load a run folder or id, a trace, or the folder or JSON of a tune, bench or batch.

    None: the last run here. `redact` replaces names, paths, arguments and source lines.
    """
    from stepscope.report.render.notebook.objects import Result
    from stepscope.results.load import REPORTED
    from stepscope.results.load import load as load_result
    from stepscope.results.redact import redact_result

    subject = load_result(what, kinds=REPORTED)
    return Result(redact_result(subject) if redact else subject)


def find_batch_size(
    fn: Callable[[int], Any],
    *,
    start: int = 8,
    max: int | None = None,  # noqa: A002
    headroom: float = 0.10,
    within: float = 0.05,
    device: str | None = None,
    seconds: float = 0.5,
) -> "BatchSizes":
    """The best batch size for `fn(batch_size)`, which runs one step with a batch of that size.

    Each size runs for about `seconds` in a forked process, so `fn` changes nothing here and may run
    out of memory. After CUDA or threads were used, forking does not work: `fn` then runs in this
    process, memory is freed after each size, and what it changes (weights, counters) stays changed.
    """
    from stepscope.batch.find_batch_size import search_function
    from stepscope.report.render.notebook.objects import BatchSizes

    return BatchSizes(search_function(fn, start, max, headroom, within, device, seconds))
