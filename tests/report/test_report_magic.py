"""`%%stepscope` in a notebook: the cell runs as it would, and its report stands below."""

import json

import pytest

pytest.importorskip("nbclient")
pytestmark = pytest.mark.launches
SETUP = """
%load_ext stepscope
import torch
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()
"""
WHOLE = """%%stepscope --as first --out first --window 2
for _ in range(12):
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen = loss.item()
seen"""
OBSERVED = """
import stepscope
with stepscope.observe("fourth", window=2) as run:
    train(6)
run
"""
FACTS = """
import json
def facts(run):
    document = run.document
    places = [(sink["file"], sink["line"]) for sink in document["sinks"]]
    print(json.dumps([document["steps"]["count"], document["run"]["program"], places]))
facts(first)
"""
CELLS = {
    "setup": SETUP,
    "whole": WHOLE,
    "facts": FACTS,
    "namespace": "print(seen == loss.item(), model.weight.shape[0])",
    "shown": "first",
    "failed": "%%stepscope --as second --out second --window 2\ntrain(5)\nraise ValueError('mine')",
    "told": "print(second.document['run']['error']['type'], second.document['steps']['count'])",
    "short": "%%stepscope --as third --steps 4 --quiet --out third\ntrain(100)\nlate = True",
    "late": "print(third.document['steps']['count'], 'late' in dir())",
    "error": "print(third.document['run']['error'])",
    "observed": OBSERVED,
    "sources": "print(json.load(open('first/sources.json'))['files']['In[2]']['6'])",
    "misused": "%%stepscope --wndow 3\n1",
    "again": "%%stepscope --out first\n1",
    "zero": "%%stepscope --steps 0\n1",
    "syntax": "%%stepscope\nfor",
    "silent": "%%stepscope --quiet --out fifth\n1 + 1;",
}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """Outputs by the cell's name."""
    from nbformat import v4

    from stepscope.report.render.notebook.ipynb import execute

    cells = [v4.new_code_cell(source) for source in CELLS.values()]
    for cell in cells:
        cell.metadata["tags"] = ["raises-exception"]
    execute(v4.new_notebook(cells=cells), tmp_path_factory.mktemp("notebook"))
    return {name: cell.outputs for name, cell in zip(CELLS, cells, strict=True)}


def said(outputs):
    return "".join(output.text for output in outputs if output.output_type == "stream")


def raised(outputs):
    return [output for output in outputs if output.output_type == "error"]


def test_the_report_stands_below_the_cell_and_its_value_is_shown(notebook):
    report, value = notebook["whole"]
    assert report.output_type == "display_data"
    assert "<iframe" in report.data["text/html"]
    assert "12 steps" in report.data["text/plain"]
    assert value.output_type == "execute_result"
    assert float(value.data["text/plain"]) > 0


def test_the_result_is_kept_and_its_lines_are_the_notebooks(notebook):
    count, program, places = json.loads(said(notebook["facts"]))
    assert (count, program) == (12, "In[2]")
    known = [place for place in places if place[0] is not None]
    assert known
    assert all(file == "In[2]" and 3 <= line <= 7 for file, line in known)


def test_what_the_cell_defines_stays(notebook):
    assert said(notebook["namespace"]) == "True 16\n"


def test_a_result_shows_itself_short(notebook):
    (shown,) = notebook["shown"]
    assert "<iframe" in shown.data["text/html"]
    assert len(shown.data["text/html"]) < 200_000


def test_what_the_cell_raises_comes_through_after_its_report(notebook):
    report, error = notebook["failed"]
    assert "Raised ValueError: mine" in report.data["text/plain"]
    assert (error.ename, error.evalue) == ("ValueError", "mine")
    assert "magic.py" not in "\n".join(error.traceback)
    assert said(notebook["told"]) == "ValueError 5\n"


def test_the_cell_is_left_after_so_many_steps_and_the_kernel_lives(notebook):
    assert notebook["short"] == []
    assert said(notebook["late"]) == "4 False\n"


def test_an_error_of_another_cell_is_not_this_ones(notebook):
    assert said(notebook["error"]) == "None\n"


def test_an_observed_block_shows_itself_the_same_way(notebook):
    (shown,) = notebook["observed"]
    assert "<iframe" in shown.data["text/html"]
    assert "6 steps" in shown.data["text/plain"]


def test_lines_of_cells_are_kept_as_source_numbered_as_shown(notebook):
    assert said(notebook["sources"]) == "    optimizer.step()\n"


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("misused", "--wndow"),
        ("again", "first already has a run: replace it with --force"),
        ("zero", "0 is not in the range x>=1"),
    ],
)
def test_misuse_is_told_in_one_line(notebook, cell, words):
    (line,) = said(notebook[cell]).splitlines()
    assert line.startswith("UsageError: %%stepscope: ")
    assert words in line


def test_what_is_no_python_is_a_syntax_error(notebook):
    (error,) = raised(notebook["syntax"])
    assert error.ename == "SyntaxError"


def test_a_semicolon_shows_nothing(notebook):
    assert notebook["silent"] == []
