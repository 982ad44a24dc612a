"""A report as an executed notebook that loads the result and draws everything again."""

import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.record.errors import MissingExtra, StepscopeError
from stepscope.record.version import __version__
from stepscope.report.render.markdown import sentence
from stepscope.report.render.markdown import text_block as shown
from stepscope.report.story.blocks import Chart, Section, Story, Table
from stepscope.report.story.narrator import story_of
from stepscope.results.load import LoadedResult
from stepscope.store.folder import RUNS_FOLDER, find_run


class NotebookCell(NamedTuple):
    """A cell; `code`: it runs, else it is Markdown."""

    source: str
    code: bool = False


def story_cells(story: Story, load: str) -> list[NotebookCell]:
    """All cells. `load` is the code that creates `result`."""
    title, verdict = f"# {sentence(story.title)}", f"**{sentence(story.verdict)}**"
    head = (title, verdict, sentence(story.subtitle), f"Made by stepscope {__version__}.")
    made = [NotebookCell("\n\n".join(head)), NotebookCell(f"import stepscope\n\n{load}", code=True)]
    for section in story.sections:
        made += _section(section)
    return made


def _section(section: Section) -> list[NotebookCell]:
    made: list[NotebookCell] = []
    words = [f"## {sentence(section.title)}"]
    for block in section.blocks:
        if isinstance(block, Chart | Table):
            if isinstance(block, Table) and block.title:
                words.append(f"### {sentence(block.title)}")
            made += [NotebookCell("\n\n".join(words))] if words else []
            words = []
            kind = "chart" if isinstance(block, Chart) else "table"
            made.append(NotebookCell(f"result.{kind}({block.id!r})", code=True))
        else:
            words.append(shown(block))
    return made + ([NotebookCell("\n\n".join(words))] if words else [])


_LONGEST_S = 600


def execute(notebook: Any, folder: Path) -> None:
    """Run its cells in `folder` and keep their outputs. Raises StepscopeError with what failed."""
    try:
        import ipykernel  # noqa: F401
        from jupyter_client.kernelspec import KernelSpecManager
        from jupyter_client.manager import AsyncKernelManager
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    except ImportError:
        raise MissingExtra("nbclient", "notebook", "an executed notebook") from None
    with tempfile.TemporaryDirectory(prefix="stepscope-") as own:
        manager = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
            connection_file=str(Path(own, "kernel.json")),
            transport="tcp" if os.name == "nt" else "ipc",
        )
        place = {"metadata": {"path": str(folder)}}
        options = {"timeout": _LONGEST_S, "record_timing": False, "resources": place}
        client = NotebookClient(notebook, km=manager, **options)
        # Figures as data, without plotly itself; nothing is written to the user's home.
        own_home = {"PLOTLY_RENDERER": "plotly_mimetype", "IPYTHONDIR": own}
        try:
            client.execute(env={**os.environ, **own_home}, cleanup_kc=True)
        except CellExecutionError as problem:
            words = _said(notebook) or f"{problem.ename}: {problem.evalue}"
            raise StepscopeError(f"the notebook stops: {words}") from None
        except (CellTimeoutError, DeadKernelError) as problem:
            words = (str(problem).strip() or "its kernel died").splitlines()[0]
            raise StepscopeError(f"the notebook stops: {words}") from None


def _said(notebook: Any) -> str:
    """The end of the last cell that ran: an error, or a line on stderr."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    for output in reversed(outputs):
        if output.output_type == "error":
            return f"{output.ename}: {output.evalue}"
        if output.output_type == "stream" and output.name == "stderr" and output.text.strip():
            return str(output.text.strip().splitlines()[-1])
    return ""


def notebook_json(subject: LoadedResult, what: str, folder: Path, redact: bool = False) -> str:
    """The text of a notebook for `folder`, with its outputs.

    `what` is the user's name for the subject. `redact`: the subject is already redacted, and the
    notebook loads it redacted. Raises MissingExtra.
    """
    try:
        import nbformat
    except ImportError:
        raise MissingExtra("nbformat", "notebook", "a notebook") from None
    there = (place for place in (Path(what), Path(RUNS_FOLDER, what)) if place.exists())
    source = next(there, None) or find_run(what, Path.cwd())
    place = os.path.relpath(source.absolute(), folder.absolute())
    made = []
    for number, (text, code) in enumerate(story_cells(story_of(subject), _load(place, redact))):
        new = nbformat.v4.new_code_cell if code else nbformat.v4.new_markdown_cell
        made.append(new(text, id=f"part-{number}"))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook = nbformat.v4.new_notebook(cells=made, metadata=about)
    execute(notebook, folder)
    if redact:
        notebook.cells[1].source = f"import stepscope\n\n{_load(subject.name, redact)}"
    return str(nbformat.writes(notebook))


def _load(place: str, redact: bool) -> str:
    return f"result = stepscope.load({place!r}{', redact=True' if redact else ''})"
