"""Executed notebooks: they load the result again and draw everything."""

import pytest
from story_reading import unpacked

from stepscope.record.errors import StepscopeError, UsageError
from stepscope.report.render.notebook.ipynb import execute, notebook_json
from stepscope.results.load import load
from stepscope.results.redact import redact_result

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytestmark = pytest.mark.launches


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return unpacked("tiny_samples", tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def subject(folder):
    return load(str(folder), folder.parent)


@pytest.fixture(scope="module")
def written(subject, folder):
    return nbformat.reads(notebook_json(subject, str(folder), folder.parent), as_version=4)


def test_it_is_a_valid_notebook(written):
    nbformat.validate(written)
    assert written.metadata.kernelspec.name == "python3"


def test_it_loads_the_result_by_a_path_from_where_it_lies(written):
    assert written.cells[1].source.endswith("stepscope.load('tiny_samples')")


def test_every_cell_of_code_has_run_without_errors(written):
    code = [cell for cell in written.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"execute_result"}


def test_charts_are_figures_and_pictures_tables_are_html(written):
    by_source = {cell.source: cell.outputs for cell in written.cells if cell.cell_type == "code"}
    (chart,) = by_source["result.chart('phases')"]
    assert chart.data["application/vnd.plotly.v1+json"]["data"]
    assert chart.data["image/png"].startswith("iVBOR")
    (table,) = by_source["result.table('sinks')"]
    assert "<table>" in table.data["text/html"]


def test_the_chart_library_is_not_in_it(written):
    assert len(nbformat.writes(written)) < 1_500_000


@pytest.mark.slow
def test_a_redacted_one_tells_no_path(subject, folder):
    text = notebook_json(redact_result(subject), str(folder), folder.parent, redact=True)
    assert "redact=True" in text
    assert "/home/me" not in text
    assert str(folder.parent) not in text


def test_what_is_nowhere_gets_one_line(subject, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        notebook_json(subject, "nowhere", tmp_path)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise ValueError('not today')", r"^the notebook stops: ValueError: not today$"),
        ("%nothing", r"^the notebook stops: UsageError: .*nothing"),
        ("import os; os._exit(3)", r"^the notebook stops: Kernel died"),
    ],
)
def test_a_cell_that_fails_is_told_in_one_line(source, words, tmp_path):
    from nbformat import v4

    with pytest.raises(StepscopeError, match=words):
        execute(v4.new_notebook(cells=[v4.new_code_cell(source)]), tmp_path)
