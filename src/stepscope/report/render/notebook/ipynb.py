"""A report as an executed notebook that loads the result and draws everything again."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.record.errors import MissingExtra, StepscopeError
from stepscope.record.version import __version__
from stepscope.report.render.markdown import sentence
from stepscope.report.render.markdown import text_block as shown
from stepscope.report.story.blocks import Chart, Section, Story, Table
from stepscope.report.story.narrator import story_of
from stepscope.results.load import LoadedResult
from stepscope.store.folder import RUNS_FOLDER, find_run


@dataclass(frozen=True, slots=True)
class _NotebookCell:
    """`code`: it is run, else it is Markdown."""

    source: str
    code: bool = False


def story_cells(story: Story, load: str) -> list[_NotebookCell]:
    """All of them. `load` is the code that makes `result`."""
    head = [
        f"# {sentence(story.title)}",
        f"**{sentence(story.verdict)}**",
        sentence(story.subtitle),
    ]
    made = [
        _NotebookCell("\n\n".join([*head, f"Made by stepscope {__version__}."])),
        _NotebookCell(f"import stepscope\n\n{load}", code=True),
    ]
    for section in story.sections:
        made += _section(section)
    return made


def _section(section: Section) -> list[_NotebookCell]:
    made: list[_NotebookCell] = []
    words = [f"## {sentence(section.title)}"]
    for block in section.blocks:
        if isinstance(block, Chart | Table):
            if isinstance(block, Table) and block.title:
                words.append(f"### {sentence(block.title)}")
            made += [_NotebookCell("\n\n".join(words))] if words else []
            words = []
            kind = "chart" if isinstance(block, Chart) else "table"
            made.append(_NotebookCell(f"result.{kind}({block.id!r})", code=True))
        else:
            words.append(shown(block))
    return made + ([_NotebookCell("\n\n".join(words))] if words else [])


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
        client = NotebookClient(
            notebook,
            km=manager,
            timeout=_LONGEST_S,
            record_timing=False,
            resources={"metadata": {"path": str(folder)}},
        )
        try:
            client.execute(env=_environment(own), cleanup_kc=True)
        except CellExecutionError as problem:
            words = _said(notebook) or f"{problem.ename}: {problem.evalue}"
            raise StepscopeError(f"the notebook stops: {words}") from None
        except (CellTimeoutError, DeadKernelError) as problem:
            words = (str(problem).strip() or "its kernel died").splitlines()[0]
            raise StepscopeError(f"the notebook stops: {words}") from None


def _said(notebook: Any) -> str:
    """What the last cell that ran ended with: an error, or a line on stderr."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    for output in reversed(outputs):
        if output.output_type == "error":
            return f"{output.ename}: {output.evalue}"
        if output.output_type == "stream" and output.name == "stderr" and output.text.strip():
            return str(output.text.strip().splitlines()[-1])
    return ""


def _environment(own: str) -> dict[str, str]:
    """Figures as data, without the chart library; nothing is written in the user's home."""
    return {**os.environ, "PLOTLY_RENDERER": "plotly_mimetype", "IPYTHONDIR": own}


_LANGUAGE = {"name": "python"}
_KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def notebook_json(subject: LoadedResult, what: str, folder: Path, redact: bool = False) -> str:
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
    notebook = _notebook(story_cells(story, _load(place, redact)))
    execute(notebook, folder)
    if redact:
        notebook.cells[1].source = _first(_load(subject.name, redact))
    return str(nbformat.writes(notebook))


def _place(what: str) -> Path:
    """The file or folder it was read from."""
    for place in (Path(what), Path(RUNS_FOLDER, what)):
        if place.exists():
            return place.absolute()
    return find_run(what, Path.cwd()).absolute()


def _load(place: str, redact: bool) -> str:
    return f"result = stepscope.load({place!r}{', redact=True' if redact else ''})"


def _first(load: str) -> str:
    return f"import stepscope\n\n{load}"


def _notebook(parts: list[_NotebookCell]) -> Any:
    from nbformat import v4

    made = []
    for number, part in enumerate(parts):
        new = v4.new_code_cell if part.code else v4.new_markdown_cell
        made.append(new(part.source, id=f"part-{number}"))
    return v4.new_notebook(cells=made, metadata={"kernelspec": _KERNEL, "language_info": _LANGUAGE})
