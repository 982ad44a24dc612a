"""A comparison written to files, the format told by their ending."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from stepscope.record.errors import UsageError

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


def write_files(document: dict[str, Any], files: Sequence[Path]) -> None:
    """Raises UsageError for what cannot be written, MissingExtra where charts need a package."""
    for path in files:
        try:
            path.write_text(_text(document, path.suffix), encoding="utf-8")
        except OSError as problem:
            raise UsageError(f"cannot write {path}: {problem.strerror}") from None


def _text(document: dict[str, Any], ending: str) -> str:
    if ending == ".md":
        from stepscope.report.compare_markdown import markdown

        return markdown(document)
    from stepscope.report.html.page import render
    from stepscope.report.story.compare import comparison_story

    return render(comparison_story(document))
