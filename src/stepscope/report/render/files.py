"""What `stepscope report` reads and writes: results, formats by file ending, files."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stepscope.record.errors import StepscopeError, UsageError
from stepscope.report.story.blocks import Card, Chart, Story, Table, TimelineView
from stepscope.report.story.narrator import story_of
from stepscope.report.text import plural
from stepscope.results.comparison import Comparison
from stepscope.results.load import LoadedResult, load_result


@dataclass(frozen=True, slots=True)
class _ReportJob:
    """`compared`: the comparison of two; None of others, or where it cannot be."""

    whats: tuple[str, ...]
    """How the user named the results."""
    subjects: tuple[LoadedResult, ...]
    story: Story
    compared: Comparison | None
    redact: bool
    folders: tuple[Path | None, ...]
    """Where each lies; None for a trace. Subjects that are redacted do not say."""


def prepare_report(whats: Sequence[str], redact: bool, cwd: Path) -> _ReportJob:
    """Read everything. Raises UsageError for what is no result."""
    found = [load_result(what, cwd) for what in whats]
    folders = tuple(one.folder for one in found)
    if len(found) == 1:
        subject = _shown(found[0], redact)
        return _ReportJob(tuple(whats), (subject,), story_of(subject), None, redact, folders)
    from stepscope.report.story.narrator import story_of_several

    compared: Comparison | str | None = None
    if len(found) == 2:
        compared = _compared(found[0], found[1], redact)
    subjects = tuple(_shown(one, redact) for one in found)
    document = compared if isinstance(compared, Comparison) else None
    story = story_of_several(subjects, compared)
    return _ReportJob(tuple(whats), subjects, story, document, redact, folders)


def _shown(subject: LoadedResult, redact: bool) -> LoadedResult:
    if not redact:
        return subject
    from stepscope.results.redact import redact_result

    return redact_result(subject)


def _compared(before: LoadedResult, after: LoadedResult, redact: bool) -> Comparison | str:
    """The comparison, or why there is none."""
    from stepscope.compare.document import compare_results
    from stepscope.compare.open_sides import side_of
    from stepscope.compare.verdicts import stored_floor

    try:
        sides = [side_of(before)], [side_of(after)]
        found = compare_results(*sides, stored_floor((*sides[0], *sides[1])))
    except StepscopeError as problem:
        return str(problem)
    if redact:
        from stepscope.results.redact import redact_document

        hidden = redact_document(msgspec.to_builtins(found))
        return msgspec.convert(hidden | {"environment": ()}, Comparison)
    return found


Write = Callable[[_ReportJob, Path, str | None], list[Path]]
"""Writes to a path; of several parts only the one named, where one is. Gives what was written."""


def report_text(job: _ReportJob, ending: str, part: str | None) -> str:
    """A format that is text and fits a pipe. Raises UsageError for others."""
    if ending == ".md":
        from stepscope.report.render.markdown import markdown

        return markdown(job.story)
    if ending == ".json":
        documents = [subject.document for subject in job.subjects]
        whole = documents[0] if len(documents) == 1 else documents
        return json.dumps(whole, indent=1, allow_nan=False) + "\n"
    if ending == ".csv":
        return _csv(job, part)
    if ending == ".txt":
        from stepscope.report.story.narrator import deliverables

        return deliverables(job.subjects, job.compared)
    if ending == ".html":
        from stepscope.report.render.html.page import result_page

        return result_page(job.subjects, job.story)
    raise UsageError(f"{ending} cannot be printed: name a file with -o")


def _csv(job: _ReportJob, part: str | None) -> str:
    from stepscope.report.render.csv_tables import MAIN_TABLE, csv_text, report_tables

    found = report_tables(job.subjects, job.story)
    if not found:
        raise UsageError("there is no table in this report")
    main = MAIN_TABLE[job.subjects[0].kind] if len(job.subjects) == 1 else "versions"
    name = part or (main if main in found else next(iter(found)))
    if name not in found:
        raise UsageError(f"there is no table {name}: {', '.join(found)}")
    return csv_text(found[name])


def _write_text(job: _ReportJob, path: Path, part: str | None) -> list[Path]:
    path.write_text(report_text(job, path.suffix.lower(), part), encoding="utf-8", newline="")
    return [path]


def _write_notebook(job: _ReportJob, path: Path, part: str | None) -> list[Path]:
    from stepscope.report.render.notebook.ipynb import notebook_json

    if len(job.subjects) > 1:
        raise UsageError("a notebook is of one result: name one")
    text = notebook_json(job.subjects[0], job.whats[0], path.absolute().parent, job.redact)
    path.write_text(text, encoding="utf-8")
    return [path]


def _write_zip(job: _ReportJob, path: Path, part: str | None) -> list[Path]:
    import zipfile

    from stepscope.report.render.csv_tables import csv_text, file_name, report_tables

    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for table in report_tables(job.subjects, job.story).values():
            entry = zipfile.ZipInfo(file_name(table))  # dated the same each time
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, csv_text(table))
    return [path]


def _write_images(job: _ReportJob, path: Path, part: str | None) -> list[Path]:
    """The chart that is named as `path`; else each beside it: `charts-losses.png`."""
    from stepscope.report.render.images import drawable_charts, file_stem, write_image

    found = drawable_charts(job.story)
    if part is not None:
        named = [chart for chart in found if chart.id == part]
        if not named:
            there = ", ".join(chart.id for chart in found) or "none"
            raise UsageError(f"there is no chart {part}: {there}")
        write_image(named[0], path, titled=True)
        return [path]
    made = []
    for chart in found:
        made.append(path.with_name(f"{path.stem}-{file_stem(chart)}{path.suffix}"))
        write_image(chart, made[-1], titled=True)
    return made


def _write_tex(job: _ReportJob, path: Path, part: str | None) -> list[Path]:
    from stepscope.report.render.latex import write_tex

    return write_tex(job.story, path)


def _write_pdf(job: _ReportJob, path: Path, part: str | None) -> list[Path]:
    from stepscope.report.render.latex import write_pdf

    return [write_pdf(job.story, path)]


_WRITERS: dict[str, Write] = {
    ".html": _write_text,
    ".md": _write_text,
    ".txt": _write_text,
    ".json": _write_text,
    ".csv": _write_text,
    ".zip": _write_zip,
    ".png": _write_images,
    ".svg": _write_images,
    ".tex": _write_tex,
    ".pdf": _write_pdf,
    ".ipynb": _write_notebook,
}


def requested_results(whats: Sequence[str], cwd: Path) -> list[str]:
    """What the user named; the last run here where nothing was."""
    if whats:
        return list(whats)
    from stepscope.store.folder import find_run

    return [str(find_run(None, cwd))]


def output_path(out: str | None) -> Path | None:
    """The file that is asked for; None where it is left to us. Raises UsageError."""
    if out is None:
        return None
    path = Path(out)
    if path.suffix.lower() not in _WRITERS:
        raise UsageError(f"{out}: a report is written as {', '.join(_WRITERS)}")
    return path


def check_output(path: Path | None, force: bool) -> None:
    """Raise UsageError now rather than after the work."""
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}: name a file in a folder that exists")
    taken = [one for one in (path, *_beside(path)) if one.exists()]
    if taken and not force:
        raise UsageError(f"{taken[0]} exists: --force replaces it")


def _beside(path: Path) -> list[Path]:
    """What else is written with it, as far as that is known beforehand."""
    if path.suffix.lower() == ".tex":
        from stepscope.report.render.latex import tex_files

        return list(tex_files(path))
    if path.suffix.lower() in (".png", ".svg"):
        return sorted(path.absolute().parent.glob(f"{_literal(path.stem)}-*{path.suffix}"))
    return []


def _literal(name: str) -> str:
    return "".join(f"[{one}]" if one in "*?[" else one for one in name)


def check_log_folder(folder: Path | None, force: bool) -> None:
    """Raise UsageError where a log would be mixed with another, which TensorBoard draws as one."""
    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"cannot write {folder}: it is a file")
    if folder.is_dir() and any(folder.glob("events.out.tfevents.*")) and not force:
        raise UsageError(f"{folder} has a log already: --force adds to it")


def default_path(job: _ReportJob, cwd: Path) -> Path:
    """`<name>.html` in the result's folder; here for a trace and for several results."""
    first = job.subjects[0]
    if len(job.subjects) > 1:
        return cwd / "report.html"
    name = first.name.partition(".")[0] if first.kind == "trace" else first.name
    return (job.folders[0] or cwd) / f"{name}.html"


def write_report(
    job: _ReportJob, path: Path | None, part: str | None, log: Path | None
) -> list[Path]:
    """Everything that is asked for. Raises UsageError for what cannot be written."""
    written: list[Path] = []
    try:
        if path is not None:
            written += _WRITERS[path.suffix.lower()](job, path, part)
        if log is not None:
            written += _log(job, log)
    except OSError as problem:
        raise UsageError(f"cannot write {problem.filename or path}: {problem.strerror}") from None
    return written


def _log(job: _ReportJob, folder: Path) -> list[Path]:
    """One log each, in a folder of its own where there are several."""
    from stepscope.report.render.tensorboard_log import write_log

    if len(job.subjects) == 1:
        return [write_log(job.subjects[0], job.story, folder)]
    return [
        write_log(one, story_of(one), folder / f"{number}-{one.name}")
        for number, one in enumerate(job.subjects, start=1)
    ]


def describe_contents(job: _ReportJob) -> str:
    """What a report holds, in a line."""
    blocks = [block for section in job.story.sections for block in section.blocks]
    counts = ((Card, "finding"), (Chart, "chart"), (Table, "table"))
    parts = [plural(len(job.story.sections), "section")]
    for kind, noun in counts:
        number = sum(isinstance(block, kind) for block in blocks)
        parts += [plural(number, noun)] if number else []
    parts += [plural(one.events, "event") for one in blocks if isinstance(one, TimelineView)]
    return f"  {', '.join(parts)}"
