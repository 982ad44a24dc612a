"""The files of a LaTeX report, and the PDF that pdflatex makes of them."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from stepscope.record.errors import UsageError
from stepscope.report.images import charts, file_stem, write_image
from stepscope.report.latex import document, part
from stepscope.report.story.blocks import Story

_PLAIN: Final = re.compile(r"[^A-Za-z0-9-]+")
_SECONDS: Final = 120


def tex_files(path: Path) -> tuple[Path, Path]:
    """The part beside a document, and the folder of its figures: names that TeX can read."""
    name = _PLAIN.sub("-", path.stem).strip("-") or "report"
    return path.with_name(f"{name}-part.tex"), path.with_name(f"{name}-figures")


def write_tex(story: Story, path: Path) -> list[Path]:
    """The document, its part and the figures as PDF. Raises MissingExtra without matplotlib."""
    body, folder = tex_files(path)
    figures = {}
    for chart in charts(story):
        folder.mkdir(exist_ok=True)
        file = folder / f"{file_stem(chart)}.pdf"
        write_image(chart, file)
        figures[chart.id] = f"{folder.name}/{file.name}"
    body.write_text(part(story, figures), encoding="utf-8")
    path.write_text(document(story, body.stem), encoding="utf-8")
    return [path, body, *([folder] if figures else [])]


def write_pdf(story: Story, path: Path) -> Path:
    """Compiled by pdflatex, in a folder of its own. Raises UsageError where there is none."""
    compiler = shutil.which("pdflatex")
    if compiler is None:
        raise UsageError("a PDF needs pdflatex (TeX Live or MiKTeX); -o report.tex needs none")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "report.tex"
        write_tex(story, source)
        compile_tex(compiler, source)
        shutil.copyfile(source.with_suffix(".pdf"), path)
    return path


def compile_tex(compiler: str, source: Path) -> None:
    """Twice, since long tables learn their widths the first time. Raises UsageError."""
    options = ("-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape")
    for _ in range(2):
        try:
            done = subprocess.run(
                [compiler, *options, source.name],
                cwd=source.parent,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise UsageError(f"pdflatex did not finish: {problem}") from None
        if done.returncode:
            words = done.stdout.decode("utf-8", "replace").splitlines()
            why = next((line for line in words if line.startswith("!")), "see its log")
            raise UsageError(f"pdflatex failed: {why}")
