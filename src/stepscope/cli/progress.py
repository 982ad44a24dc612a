"""The progress display of every long command: a bar or a status on a terminal, plain lines
elsewhere, nothing where the user asked for quiet. It writes to stderr.
"""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.record.units import format_duration
from stepscope.report.text import safe

if TYPE_CHECKING:
    from stepscope.launch.program import Program


class Progress:
    """What a command shows while it works; this one shows nothing."""

    def update(
        self,
        label: str,
        done: int | None = None,
        total: int | None = None,
        left: str | Callable[[], str] = "",
    ) -> None:
        """Show the current work; `left` is the remaining time, in words: a function is asked again
        whenever the line is drawn."""

    def line(self, text: str) -> None:
        """Print a line that stays, for work that is finished."""


class _Lines(Progress):
    def line(self, text: str) -> None:
        print(safe(text), file=sys.stderr, flush=True)


class _Bar(Progress):
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task

    def update(
        self,
        label: str,
        done: int | None = None,
        total: int | None = None,
        left: str | Callable[[], str] = "",
    ) -> None:
        known = done is not None and total is not None
        fields = {"count": f"{done:,}/{total:,}  " if known else "", "left": left}
        self._bar.update(self._task, description=safe(label), completed=done, total=total, **fields)

    def line(self, text: str) -> None:
        self._bar.console.print(safe(text), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress(quiet: bool = False, label: str = "starting") -> Iterator[Progress]:
    """Show how far a command is. Without a total it shows the current work and its elapsed time."""
    if quiet:
        yield Progress()
        return
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class Left(ProgressColumn):
        def render(self, task: Any) -> Text:
            left = task.fields["left"]
            told = left() if callable(left) else left
            return Text(safe(f"{task.fields['count']}{told}"), overflow="ellipsis", no_wrap=True)

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        Left(),
    )
    console = Console(stderr=True, emoji=False)
    with Bar(*columns, console=console, transient=True, refresh_per_second=4) as bar:
        yield _Bar(bar, bar.add_task(label, total=None, left="", count=""))


def time_left(seconds: float | None) -> str:
    """`3 min 20 s left`; empty if unknown."""
    return "" if seconds is None else f"{format_duration(seconds)} left"


def note_misplaced(program: "Program") -> None:
    """Say on stderr which of the command's own options stand after the program, which got them and
    seems not to know them. It runs all the same: it may read them in another file."""
    from stepscope.launch.program import takes_option
    from stepscope.record.privacy import masked_arguments

    context = click.get_current_context()
    found = [one for one in context.command.params if isinstance(one, click.Option)]
    own = {name: one.is_flag for one in found for name in one.opts if name.startswith("--")}
    moved, kept, names = list[str](), list[str](), list[str]()
    words = iter(program.arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in own or takes_option(program, name, Path.cwd()):
            kept.append(word)
            if word == "--":
                break
            continue
        names.append(name)
        moved += [word] if equals or own[name] else [word, *[next(words, "")]]
    if not names:
        return
    whole, given = [program.target, *program.arguments], sys.argv[1:]
    before = given[: -len(whole)] if given[-len(whole) :] == whole else [str(context.info_name)]
    before += ["-m"] if program.module and "-m" not in before else []
    kept += words
    verb = "belongs" if len(names) == 1 else "belong"
    said = f"{' and '.join(names)} {verb} before {program.target}"
    if [*masked_arguments(kept)] == kept:  # else it would print a secret, or not run
        parts = ["stepscope", *before[:1], *moved, *before[1:], program.target, *kept]
        said += f": {shlex.join(parts)}"
    print(f"stepscope: {safe(said)}", file=sys.stderr, flush=True)
