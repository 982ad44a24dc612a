"""What `stepscope report` reads and writes: results, their story, files."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.units import plural
from stepscope.report.render.formats import Report, renderer_for
from stepscope.report.story.blocks import Card, Chart, Table, TimelineView
from stepscope.report.story.narrator import story_of, story_of_several
from stepscope.results.comparison import Comparison
from stepscope.results.load import REPORTED, LoadedResult, load

if TYPE_CHECKING:
    from stepscope.results.redact import NameReplacements


def prepare_report(whats: Sequence[str], redact: bool, cwd: Path) -> Report:
    """Read everything. Raises UsageError for anything but results."""
    found = subjects = tuple(load(what, cwd, REPORTED) for what in whats)
    names = None
    if redact:
        from stepscope.results.redact import NameReplacements, redact_result

        names = NameReplacements()
        subjects = tuple(redact_result(one, names) for one in found)
    compared = _compared(found[0], found[1], names) if len(found) == 2 else None
    several = len(subjects) > 1
    story = story_of_several(subjects, compared) if several else story_of(subjects[0])
    document = compared if isinstance(compared, Comparison) else None
    folders = tuple(one.folder for one in found)
    return Report(tuple(whats), subjects, story, document, names, folders)


def _compared(
    before: LoadedResult, after: LoadedResult, names: "NameReplacements | None"
) -> Comparison | str:
    """The comparison, or why it is not possible."""
    from stepscope.compare.document import compare_results
    from stepscope.compare.open_sides import side_of

    try:
        found = compare_results([side_of(before)], [side_of(after)])
    except StepscopeError as problem:
        return str(problem) if names is None else names.text(str(problem))
    if names is None:
        return found
    from stepscope.results.redact import redact_comparison

    return redact_comparison(found, names)


def requested_results(whats: Sequence[str], cwd: Path) -> list[str]:
    """The results the user named; by default the last run here."""
    if whats:
        return list(whats)
    from stepscope.store.folder import find_run

    return [str(find_run(None, cwd))]


def output_path(out: str | None) -> Path | None:
    """The requested file; None for the default. Raises UsageError."""
    if out is None:
        return None
    path = Path(out)
    renderer_for(path)
    return path


def check_output(path: Path | None, force: bool) -> None:
    """Raise UsageError now rather than after the work."""
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}: name a file in a folder that exists")
    taken = [one for one in (path, *renderer_for(path).beside(path)) if one.exists()]
    if taken and not force:
        raise UsageError(f"{taken[0]} exists: --force replaces it")


def check_log_folder(folder: Path | None, force: bool) -> None:
    """Raise UsageError if a log would be mixed with another, which TensorBoard draws as one."""
    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"cannot write {folder}: it is a file")
    if folder.is_dir() and any(folder.glob("events.out.tfevents.*")) and not force:
        raise UsageError(f"{folder} already has a log: --force adds to it")


def default_path(report: Report, cwd: Path) -> Path:
    """`<name>.html` in the result's folder, or here for a trace or several results.

    Raises UsageError.
    """
    first = report.subjects[0]
    if len(report.subjects) > 1:
        return cwd / "report.html"
    name = first.name.partition(".")[0] if first.kind == "trace" else first.name
    path = (report.folders[0] or cwd) / f"{name}.html"
    if path.is_symlink():  # the folder may be a stranger's, the link's target the user's
        raise UsageError(f"{path} is a link: name a file with -o")
    return path


def write_report(
    report: Report, path: Path | None, part: str | None, log: Path | None
) -> list[Path]:
    """Write everything requested; several results get a log each, in separate folders. Raises
    UsageError if a file cannot be written."""
    written: list[Path] = []
    try:
        if path is not None:
            written += renderer_for(path).write(report, path, part)
        if log is not None:
            from stepscope.report.render.tensorboard_log import write_log

            several = len(report.subjects) > 1
            for number, one in enumerate(report.subjects, start=1):
                story = story_of(one) if several else report.story
                folder = log / f"{number}-{one.name}" if several else log
                written.append(write_log(one, story, folder))
    except OSError as problem:
        raise UsageError(f"cannot write {problem.filename or path}: {problem.strerror}") from None
    return written


def describe_contents(report: Report) -> str:
    """A report's contents, in one line."""
    blocks = list(report.story.blocks)
    counts = ((Card, "finding"), (Chart, "chart"), (Table, "table"))
    parts = [plural(len(report.story.sections), "section")]
    for kind, noun in counts:
        number = sum(isinstance(block, kind) for block in blocks)
        parts += [plural(number, noun)] if number else []
    parts += [plural(one.events, "event") for one in blocks if isinstance(one, TimelineView)]
    removed = f"\n  redacted: {report.names.removed or 'nothing'}" if report.names else ""
    return f"  {', '.join(parts)}{removed}"
