"""The notebook people start with: it runs from top to bottom."""

import os
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
ROOT = Path(__file__).parent.parent.parent
QUICKSTART = ROOT / "notebooks" / "quickstart.ipynb"


@pytest.fixture
def notebook():
    return nbformat.read(QUICKSTART, as_version=4)


def test_it_is_kept_without_outputs_and_paths_of_a_machine(notebook):
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    text = QUICKSTART.read_text()
    assert not any(place in text for place in ("/home/", "/root/", "/tmp/", "/Users/", "/content/"))


@pytest.mark.launches
@pytest.mark.slow
def test_it_runs_from_top_to_bottom(notebook, tmp_path, monkeypatch):
    from stepscope.report.render.notebook.ipynb import execute

    command = tmp_path / "bin" / "stepscope"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m stepscope.cli.main "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STEPSCOPE_TINY", "1")
    folder = tmp_path / "work"
    folder.mkdir()
    execute(notebook, folder)
    said = "".join(
        output.text
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "stream"
    )
    assert "Why it's slow" in said or "No bottleneck" in said
    assert "trials" in said
    assert "optimal batch" in said
    assert (folder / "report.html").stat().st_size > 100_000
    assert (folder / "tuned" / "tune.json").is_file()
