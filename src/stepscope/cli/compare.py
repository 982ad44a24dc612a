"""`stepscope compare`: is one result faster than another? Prints a verdict, writes files, sets an
exit code."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from stepscope.record.errors import UsageError

if TYPE_CHECKING:
    from stepscope.results.comparison import Comparison

_ENDINGS: Final = (".html", ".md")


def check_files(files: Sequence[Path], force: bool) -> None:
    """Raise UsageError now rather than after the work. `-` stands for stdout."""
    for path in files:
        if str(path) == "-":
            continue
        if path.suffix not in _ENDINGS:
            raise UsageError(f"{path}: a comparison is written as {' or '.join(_ENDINGS)}")
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise UsageError(f"cannot write {path}: name a file in a folder that exists")
        if path.exists() and not force:
            raise UsageError(f"{path} exists: --force replaces it")


def write_files(comparison: "Comparison", files: Sequence[Path]) -> None:
    """Raises UsageError if a file cannot be written, MissingExtra if charts need a package."""
    for path in files:
        try:
            path.write_bytes(_text(comparison, path.suffix).encode("utf-8", "replace"))
        except OSError as problem:
            raise UsageError(f"cannot write {path}: {problem.strerror}") from None


def _text(comparison: "Comparison", ending: str) -> str:
    from stepscope.report.story.compare import comparison_story

    if ending == ".md":
        from stepscope.report.render.markdown import markdown

        return markdown(comparison_story(comparison))
    from stepscope.report.render.html.page import render_page

    return render_page(comparison_story(comparison))


class _Listing(click.Command):
    """Lets `--to` take several values, as in `A1 A2 --to B1 B2`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _repeated(args))


def _repeated(words: list[str]) -> list[str]:
    """Each word after `--to` up to the next option becomes a `--to` of its own."""
    found, taking = [], False
    for at, word in enumerate(words):
        if word == "--to":
            follows = words[at + 1] if at + 1 < len(words) else "-"
            taking = not follows.startswith("-")
            found += [] if taking else [word]
        elif taking and not word.startswith("-"):
            found += ["--to", word]
        else:
            taking = False
            found.append(word)
    return found


@click.command(cls=_Listing)
@click.argument("results", nargs=-1, required=True)
@click.option("--to", "others", multiple=True, metavar="B...", help="The other side: one or more.")
@click.option("--max-regression", metavar="SHARE", help="Exit 1 if slower by more: 5% or 0.05.")
@click.option("--strict", is_flag=True, help="Exit code 3 if the verdict is UNCLEAR.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option(
    "--markdown", type=click.Path(path_type=Path), help="Also write Markdown to this file."
)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Write .html or .md; - prints.")
@click.option("--force", is_flag=True, help="Replace files that exist.")
def compare(
    results: tuple[str, ...],
    others: tuple[str, ...],
    max_regression: str | None,
    strict: bool,
    as_json: bool,
    markdown: Path | None,
    out: Path | None,
    force: bool,
) -> int:
    """Is B faster or slower than A, by how much, and why?

    compare A B, or with several runs per side: compare A1 A2 A3 --to B1 B2 B3. Each is a run folder
    or id, a folder filled by `run --repeat`, a trace, or the result of a bench or tune. The exit
    code is 1 if a step is certainly slower than --max-regression allows, 2 for bad usage.
    """
    import msgspec

    from stepscope.compare.document import compare_results, parse_limit
    from stepscope.compare.open_sides import open_sides
    from stepscope.compare.verdicts import remember_noise
    from stepscope.report.render.terminal.story import print_story
    from stepscope.report.story.compare import comparison_screen
    from stepscope.store.json_file import json_text

    if not others and len(results) != 2:
        raise UsageError("name two results, A B, or several per side: A1 A2 --to B1 B2")
    base, other = (results, others) if others else (results[:1], results[1:])
    most = None if max_regression is None else parse_limit(max_regression)
    files = [path for path in (markdown, out) if path is not None]
    check_files(files, force)
    ours, theirs = open_sides(base, other, Path.cwd())
    comparison = compare_results(ours, theirs, most, strict)
    for side in (ours, theirs):
        remember_noise(side)
    write_files(comparison, [path for path in files if str(path) != "-"])
    if as_json:
        print(json_text(msgspec.to_builtins(comparison)))
    elif Path("-") in files:
        print(_text(comparison, ".md"), end="")
    else:
        print_story(comparison_screen(comparison), sys.stdout)
    return comparison.exit_code
