"""What `import stepscope` offers a program or notebook."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic_ns
from typing import Any


def step() -> None:
    """Say that a step has ended, in a loop that hides its steps. Does nothing when unobserved."""
    import sys

    module = sys.modules.get("stepscope.probe.observer")
    observer = module.current if module is not None else None
    if observer is not None:
        observer.core.marked()


class Observed:
    """A run made by `observe`: `document` is what `stepscope show --json` prints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.document: dict[str, Any] | None = None

    def __repr__(self) -> str:
        import io

        from stepscope.report.terminal import print_summary

        if self.document is None:
            return f"<stepscope run {self.folder.name}, under way>"
        stream = io.StringIO()
        print_summary(self.document, stream)
        return stream.getvalue()


@contextmanager
def observe(
    out: str | Path | None = None, *, window: int = 6, force: bool = False
) -> Iterator[Observed]:
    """Observe what happens inside the `with`, as `stepscope run` observes a program.

    For notebooks and code that cannot be started by `stepscope run`. Yields the run, which shows
    itself once it is over.
    """
    import torch  # noqa: F401

    from stepscope.analyze.summary import summarize
    from stepscope.diagnose.findings import with_findings
    from stepscope.launch.here import Here, refuse_second
    from stepscope.record.options import ProbeOptions
    from stepscope.store.folder import create

    refuse_second()
    folder = create(None if out is None else Path(out), force, Path.cwd())
    observed = Observed(folder)
    options = ProbeOptions(folder=str(folder.absolute()), launched_ns=monotonic_ns(), window=window)
    here = Here(options)
    here.begin()
    error: BaseException | None = None
    try:
        yield observed
    except BaseException as raised:
        error = raised
        raise
    finally:
        here.end(error)
        observed.document = with_findings(summarize(folder), folder)
