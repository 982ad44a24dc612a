"""The formats of a report, one class each. Other packages add theirs by an entry point."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from stepscope.record.errors import UsageError
from stepscope.record.version import entry_points
from stepscope.report.story.blocks import Story
from stepscope.report.text import slug
from stepscope.results.comparison import Comparison
from stepscope.results.load import LoadedResult
from stepscope.store.json_file import json_text

if TYPE_CHECKING:
    from stepscope.results.redact import NameReplacements

ENTRY_POINTS = "stepscope.renderers"


@dataclass(frozen=True, slots=True)
class Report:
    """What a report is made from. `compared`: the comparison of two results, or None."""

    whats: tuple[str, ...]
    """How the user named the results."""
    subjects: tuple[LoadedResult, ...]
    story: Story
    compared: Comparison | None
    names: "NameReplacements | None"
    """What redaction replaced; None: not redacted."""
    folders: tuple[Path | None, ...]
    """Each result's folder; None for a trace. Kept here, since redacted subjects have none."""


class Renderer:
    """A format. Text formats define `text`; others define `write`."""

    name: ClassVar[str]
    """What `--format` takes."""
    endings: ClassVar[tuple[str, ...]]
    """Endings of the files it writes, with the dot; the first is the default."""
    purpose: ClassVar[str]
    """For the command's help: what it produces."""
    piped: ClassVar[bool] = False
    """Whether `-o -` can print it."""

    def text(self, report: Report, part: str | None) -> str:
        """The whole file's text, or only the named part."""
        raise UsageError(f"{self.endings[0]} cannot be printed: name a file with -o")

    def write(self, report: Report, path: Path, part: str | None) -> list[Path]:
        """Write to a path; returns the files written."""
        path.write_bytes(self.text(report, part).encode("utf-8", "replace"))
        return [path]

    def beside(self, path: Path) -> list[Path]:
        """Other files written with it, as far as known beforehand."""
        return []


class Html(Renderer):
    name = "html"
    endings = (".html",)
    purpose = "one page with charts and the timeline"

    def text(self, report: Report, part: str | None) -> str:
        from stepscope.report.render.html.page import result_page

        return result_page(report.subjects, report.story)


class Markdown(Renderer):
    name = "md"
    endings = (".md",)
    purpose = "Markdown for a pull request"
    piped = True

    def text(self, report: Report, part: str | None) -> str:
        from stepscope.report.render.markdown import markdown

        return markdown(report.story)


class Plain(Renderer):
    name = "txt"
    endings = (".txt",)
    purpose = "plain text: key questions, findings, versions"
    piped = True

    def text(self, report: Report, part: str | None) -> str:
        from stepscope.report.render.plain import plain_report

        return plain_report(report.subjects, report.compared)


class Latex(Renderer):
    name = "tex"
    endings = (".tex",)
    purpose = "LaTeX: a document, and a part to \\input"

    def write(self, report: Report, path: Path, part: str | None) -> list[Path]:
        from stepscope.report.render.latex import write_tex

        return write_tex(report.story, path)

    def beside(self, path: Path) -> list[Path]:
        from stepscope.report.render.latex import tex_files

        return list(tex_files(path))


class Pdf(Renderer):
    name = "pdf"
    endings = (".pdf",)
    purpose = "the LaTeX document, compiled"

    def write(self, report: Report, path: Path, part: str | None) -> list[Path]:
        from stepscope.report.render.latex import write_pdf

        return [write_pdf(report.story, path)]


class Notebook(Renderer):
    name = "ipynb"
    endings = (".ipynb",)
    purpose = "an executed notebook"

    def write(self, report: Report, path: Path, part: str | None) -> list[Path]:
        from stepscope.report.render.notebook.ipynb import notebook_json

        if len(report.subjects) > 1:
            raise UsageError("a notebook takes one result: name one")
        where = path.absolute().parent
        text = notebook_json(report.subjects[0], report.whats[0], where, report.names is not None)
        path.write_text(text, encoding="utf-8")
        return [path]


class Json(Renderer):
    name = "json"
    endings = (".json",)
    purpose = "the whole document"
    piped = True

    def text(self, report: Report, part: str | None) -> str:
        documents = [subject.document for subject in report.subjects]
        whole = documents[0] if len(documents) == 1 else documents
        return json_text(whole) + "\n"


class Csv(Renderer):
    name = "csv"
    endings = (".csv",)
    purpose = "one table; --part names another"
    piped = True

    def text(self, report: Report, part: str | None) -> str:
        from stepscope.report.render.csv_tables import csv_text, main_table, report_tables

        found = report_tables(report.subjects, report.story)
        if not found:
            raise UsageError("this report has no tables")
        name = part or main_table(report.subjects, found)
        if name not in found:
            raise UsageError(f"there is no table {name}: {', '.join(found)}")
        return csv_text(found[name])


class Zip(Renderer):
    name = "zip"
    endings = (".zip",)
    purpose = "all tables as CSV"

    def write(self, report: Report, path: Path, part: str | None) -> list[Path]:
        import zipfile

        from stepscope.report.render.csv_tables import csv_text, file_name, report_tables

        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for table in report_tables(report.subjects, report.story).values():
                entry = zipfile.ZipInfo(file_name(table))  # a fixed date, for reproducible files
                entry.compress_type = zipfile.ZIP_DEFLATED
                packed.writestr(entry, csv_text(table))
        return [path]


class Images(Renderer):
    name = "images"
    endings = (".png", ".svg")
    purpose = "every chart; --part names one"

    def write(self, report: Report, path: Path, part: str | None) -> list[Path]:
        from stepscope.report.render.images import drawable_charts, write_image

        found = drawable_charts(report.story)
        if part is not None:
            named = [chart for chart in found if chart.id == part]
            if not named:
                there = ", ".join(chart.id for chart in found) or "none"
                raise UsageError(f"there is no chart {part}: {there}")
            write_image(named[0], path, titled=True)
            return [path]
        made = []
        for chart in found:
            made.append(path.with_name(f"{path.stem}-{slug(chart.id, 'chart')}{path.suffix}"))
            write_image(chart, made[-1], titled=True)
        return made

    def beside(self, path: Path) -> list[Path]:
        stem = "".join(f"[{one}]" if one in "*?[" else one for one in path.stem)
        return sorted(path.absolute().parent.glob(f"{stem}-*{path.suffix}"))


RENDERERS: tuple[Renderer, ...] = tuple(
    kind() for kind in (Html, Markdown, Plain, Latex, Pdf, Notebook, Json, Csv, Zip, Images)
)


@cache
def all_renderers() -> tuple[Renderer, ...]:
    """Ours, then those of other packages. Raises UsageError for one that cannot be loaded."""
    found = list(RENDERERS)
    for point in entry_points(ENTRY_POINTS):
        try:
            made = point.load()()
        except Exception as problem:
            raise UsageError(f"renderer {point.name} ({point.value}): {problem!r}") from None
        if not isinstance(made, Renderer):
            raise UsageError(f"renderer {point.name} ({point.value}) is not a Renderer")
        found.append(made)
    return tuple(found)


def renderer_for(path: Path) -> Renderer:
    """The renderer for a file's ending. Raises UsageError that lists the endings."""
    ending = path.suffix.lower()
    for one in all_renderers():
        if ending in one.endings:
            return one
    there = ", ".join(ending for one in all_renderers() for ending in one.endings)
    raise UsageError(f"{path}: a report is written as {there}")


def piped_renderer(name: str) -> Renderer:
    """The renderer of that name that can print. Raises UsageError that lists the names."""
    piped = {one.name: one for one in all_renderers() if one.piped}
    if name not in piped:
        raise UsageError(f"--format {name}: choose {', '.join(piped)}")
    return piped[name]
