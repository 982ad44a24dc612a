"""The API of `import stepscope` for programs and notebooks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.report.render.notebook.objects import BatchSizes, Result


def step() -> None:
    """Mark the end of a step, in a loop stepscope cannot see into. Does nothing when unobserved."""
    import sys

    module = sys.modules.get("stepscope.probe.observer")
    observer = module.current if module is not None else None
    if observer is not None:
        observer.core.marked()


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
