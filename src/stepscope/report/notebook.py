"""A report as an executed notebook: it loads the result and draws everything again."""

import os
from pathlib import Path
from typing import Any

from stepscope.record.errors import MissingExtra
from stepscope.report.notebook_cells import Cell, cells
from stepscope.report.notebook_run import execute
from stepscope.report.story.of import story_of
from stepscope.report.subject import Subject
from stepscope.store.folder import HOME, find

_LANGUAGE = {"name": "python"}
_KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def render(subject: Subject, what: str, folder: Path, redact: bool = False) -> str:
    """The text of a notebook that is to lie in `folder`, its outputs in place.

    `what` is how the user named the subject. `redact`: the subject is redacted already, and the
    notebook says so when it loads it. Raises MissingExtra.
    """
    try:
        import nbformat
    except ImportError:
        raise MissingExtra("nbformat", "notebook", "a notebook") from None
    place = os.path.relpath(_place(what), folder.absolute())
    story = story_of(subject)
    notebook = _notebook(cells(story, _load(place, redact)))
    execute(notebook, folder)
    if redact:
        notebook.cells[1].source = _first(_load(subject.name, redact))
    return str(nbformat.writes(notebook))


def _place(what: str) -> Path:
    """The file or folder it was read from."""
    for place in (Path(what), Path(HOME, what)):
        if place.exists():
            return place.absolute()
    return find(what, Path.cwd()).absolute()


def _load(place: str, redact: bool) -> str:
    return f"result = stepscope.load({place!r}{', redact=True' if redact else ''})"


def _first(load: str) -> str:
    return f"import stepscope\n\n{load}"


def _notebook(parts: list[Cell]) -> Any:
    from nbformat import v4

    made = []
    for number, part in enumerate(parts):
        new = v4.new_code_cell if part.code else v4.new_markdown_cell
        made.append(new(part.source, id=f"part-{number}"))
    return v4.new_notebook(cells=made, metadata={"kernelspec": _KERNEL, "language_info": _LANGUAGE})
