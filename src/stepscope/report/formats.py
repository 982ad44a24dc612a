"""The formats of a report, by the ending of the file that is asked for."""

import json
from collections.abc import Callable
from pathlib import Path

from stepscope.record.errors import UsageError
from stepscope.report.job import Job

Write = Callable[[Job, Path, str | None], list[Path]]
"""Writes to a path; of several parts only the one named, where one is. Gives what was written."""


def text_of(job: Job, ending: str, part: str | None) -> str:
    """A format that is text and fits a pipe. Raises UsageError for others."""
    if ending == ".md":
        from stepscope.report.markdown import markdown

        return markdown(job.story)
    if ending == ".json":
        documents = [subject.document for subject in job.subjects]
        whole = documents[0] if len(documents) == 1 else documents
        return json.dumps(whole, indent=1, allow_nan=False) + "\n"
    if ending == ".csv":
        return _csv(job, part)
    if ending == ".txt":
        from stepscope.report.deliverables import deliverables

        return deliverables(job.subjects, job.compared)
    if ending == ".html":
        from stepscope.report.page_file import page

        return page(job.subjects, job.story)
    raise UsageError(f"{ending} cannot be printed: name a file with -o")


def _csv(job: Job, part: str | None) -> str:
    from stepscope.report.tables import MAIN, csv_text, report_tables

    found = report_tables(job.subjects, job.story)
    if not found:
        raise UsageError("there is no table in this report")
    main = MAIN[job.subjects[0].kind] if len(job.subjects) == 1 else "versions"
    name = part or (main if main in found else next(iter(found)))
    if name not in found:
        raise UsageError(f"there is no table {name}: {', '.join(found)}")
    return csv_text(found[name])


def _write_text(job: Job, path: Path, part: str | None) -> list[Path]:
    path.write_text(text_of(job, path.suffix.lower(), part), encoding="utf-8", newline="")
    return [path]


def _write_notebook(job: Job, path: Path, part: str | None) -> list[Path]:
    from stepscope.report.notebook import render

    if len(job.subjects) > 1:
        raise UsageError("a notebook is of one result: name one")
    text = render(job.subjects[0], job.whats[0], path.absolute().parent, job.redact)
    path.write_text(text, encoding="utf-8")
    return [path]


def _write_zip(job: Job, path: Path, part: str | None) -> list[Path]:
    import zipfile

    from stepscope.report.tables import csv_text, file_name, report_tables

    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for table in report_tables(job.subjects, job.story).values():
            entry = zipfile.ZipInfo(file_name(table))  # dated the same each time
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, csv_text(table))
    return [path]


def _write_images(job: Job, path: Path, part: str | None) -> list[Path]:
    """The chart that is named as `path`; else each beside it: `charts-losses.png`."""
    from stepscope.report.images import charts, file_stem, write_image

    found = charts(job.story)
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


def _write_tex(job: Job, path: Path, part: str | None) -> list[Path]:
    from stepscope.report.latex_files import write_tex

    return write_tex(job.story, path)


def _write_pdf(job: Job, path: Path, part: str | None) -> list[Path]:
    from stepscope.report.latex_files import write_pdf

    return [write_pdf(job.story, path)]


WRITERS: dict[str, Write] = {
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
