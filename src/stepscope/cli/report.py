"""`stepscope report`: a result as a file to look at or hand in."""

import sys
from pathlib import Path

import click

from stepscope.record.errors import UsageError
from stepscope.record.units import format_bytes


class _Command(click.Command):
    """Its help lists all formats, including those of other packages."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from stepscope.report.render.formats import all_renderers

        super().format_help_text(ctx, formatter)
        with formatter.section("Formats"):
            formatter.write_dl([(", ".join(one.endings), one.purpose) for one in all_renderers()])


@click.command(cls=_Command)
@click.argument("whats", nargs=-1, metavar="[WHAT]...")
@click.option("-o", "--out", metavar="FILE", help="Its ending sets the format; - prints.")
@click.option("--format", "form", metavar="NAME", help="Format of -o -: md, txt, json, csv [md].")
@click.option("--part", metavar="NAME", help="Only this table (.csv) or chart (.png, .svg).")
@click.option("--tensorboard", type=click.Path(path_type=Path), help="Write a log folder here.")
@click.option("--open", "opened", is_flag=True, help="Open it in the browser.")
@click.option("--redact", is_flag=True, help="Replace names, paths, arguments and source lines.")
@click.option("--force", is_flag=True, help="Replace files that exist.")
def report(
    whats: tuple[str, ...],
    out: str | None,
    form: str | None,
    part: str | None,
    tensorboard: Path | None,
    opened: bool,
    redact: bool,
    force: bool,
) -> int:
    """Write a report of WHAT: a run folder or id, a trace, the result of a tune, bench or batch.

    Without WHAT the last run here; several make one report of all, two are compared.
    """
    from stepscope.report.render.files import (
        check_log_folder,
        check_output,
        default_path,
        describe_contents,
        output_path,
        prepare_report,
        requested_results,
        write_report,
    )
    from stepscope.report.render.formats import piped_renderer
    from stepscope.report.text import safe

    if form is not None and out != "-":
        raise UsageError("--format goes with -o -; a file's ending sets its format")
    path = None if out == "-" else output_path(out)
    check_output(path, force)
    check_log_folder(tensorboard, force)
    made = prepare_report(requested_results(whats, Path.cwd()), redact, Path.cwd())
    if out == "-":
        text = piped_renderer(form or "md").text(made, part)
        sys.stdout.write(text.encode("utf-8", "replace").decode("utf-8"))
        if redact:
            print(describe_contents(made), file=sys.stderr)
        return 0
    if out is None and path is None and tensorboard is None:
        path = default_path(made, Path.cwd())
        check_output(path, force)
    written = write_report(made, path, part, tensorboard)
    for file in written:
        much = f"  {format_bytes(file.stat().st_size)}" if file.is_file() else ""
        print(f"{safe(str(file))}{much}", file=sys.stderr)
    print(describe_contents(made), file=sys.stderr)
    if opened and path is not None:
        import webbrowser

        webbrowser.open(written[0].absolute().as_uri())
    return 0
