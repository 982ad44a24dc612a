"""How far a search for a batch size is: one changing line on a terminal, else a line each."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from stepscope.report.text import milliseconds, safe, seconds
from stepscope.tune.batch_measured import Measured
from stepscope.tune.batch_program import Hear


@contextmanager
def progress(quiet: bool) -> Iterator[Hear]:
    """What hears of each trial; on stderr."""
    if quiet:
        yield lambda batch, got: None
    elif not sys.stderr.isatty():
        yield _plain
    else:
        from rich.console import Console

        console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        with console.status("the program as it is") as status:

            def hear(batch: int | None, got: Measured | None) -> None:
                if got is not None:
                    console.print(_came_of(got))
                elif batch is not None:
                    status.update(f"batch {batch:,}")

            yield hear


def _plain(batch: int | None, got: Measured | None) -> None:
    if got is not None:
        print(_came_of(got), file=sys.stderr, flush=True)


def _came_of(got: Measured) -> str:
    took = f"({seconds(got.seconds)})"
    if not got.ok:
        words = got.status.replace("_", " ")
        why = f": {got.why}" if got.why and got.status != "out_of_memory" else ""
        return f"batch {got.batch:,}: {safe(words + why)} {took}"
    rate = 1e3 * len(got.sample_ms) / sum(got.sample_ms)
    return f"batch {got.batch:,}: {milliseconds(rate)} samples/s {took}"
