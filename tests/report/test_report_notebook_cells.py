"""A story as cells: text that stays text, and a line of code for each chart and table."""

import re

import pytest
from stories import hostile, whole

from stepscope.report.render.markdown import fenced, sentence, text_block
from stepscope.report.render.notebook.ipynb import story_cells
from stepscope.report.story.blocks import Chart, Code, Missing, Paragraph, Table


@pytest.fixture(scope="module")
def made():
    return story_cells(whole(), "result = stepscope.load('run')")


def test_the_result_is_loaded_first(made):
    assert made[0].source.startswith("# ")
    assert made[1].code
    assert made[1].source == "import stepscope\n\nresult = stepscope.load('run')"


def test_each_chart_and_table_is_a_line_of_code_under_its_section(made):
    story = whole()
    blocks = [block for section in story.sections for block in section.blocks]
    drawn = [one for one in blocks if isinstance(one, Chart | Table)]
    code = [cell.source for cell in made[2:] if cell.code]
    kinds = {Chart: "chart", Table: "table"}
    assert code == [f"result.{kinds[type(one)]}({one.id!r})" for one in drawn]
    headings = [line for cell in made if not cell.code for line in cell.source.splitlines()]
    titles = [line for line in headings if line.startswith("## ")]
    assert len(titles) == len(story.sections)


def test_no_cell_is_empty(made):
    assert all(cell.source.strip() for cell in made)


def test_every_line_of_code_is_python_whatever_strangers_called_things():
    code = [cell for cell in story_cells(hostile(whole()), "result = None") if cell.code]
    for cell in code:
        compile(cell.source, "cell", "exec")
        assert cell.source.startswith(("import stepscope", "result."))
    assert len(code) > 3


def test_no_tag_of_strangers_reaches_a_text_cell():
    for cell in story_cells(hostile(whole()), "result = None"):
        if not cell.code:
            outside = re.sub("`[^`]*`", "", _without_fences(cell.source))
            assert "<" not in outside.replace("\\<", "").replace("<!-- -->", "")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a*b", "a\\*b"),
        ("$x^2$", "\\$x^2\\$"),
        ("[a](b)", "\\[a\\](b)"),
        ("_a_", "\\_a\\_"),
        ("- item", "&#45; item"),
        ("# title", "&#35; title"),
        ("1. first", "&#49;. first"),
        ("1.77×", "1.77×"),
        ("a | b", "a \\| b"),
        ("<script>", "\\<script\\>"),
        ("a\x1b[2Jb", "a·\\[2Jb"),
    ],
)
def test_text_begins_no_list_heading_formula_or_tag(value, written):
    assert sentence(value) == written


def test_nothing_in_code_ends_its_fence():
    code = fenced("a\n```\n````\nb", "py")
    lines = code.splitlines()
    assert lines[0] == "`````py"
    assert lines[-1] == "`````"
    assert lines[1:-1] == ["a", "```", "````", "b"]


def test_what_is_missing_is_said_with_the_way_to_get_it():
    assert text_block(Missing("No window.", "Run it longer.")) == "> **No window.** Run it longer."
    assert text_block(Paragraph("So it is.", strong=True)) == "**So it is.**"
    assert text_block(Code("ls", "sh")) == "```sh\nls\n```"


def _without_fences(source):
    kept, fence = [], ""
    for line in source.splitlines():
        ticks = line[: len(line) - len(line.lstrip("`"))]
        if not fence and len(ticks) >= 3:
            fence = ticks
        elif fence:
            fence = "" if line == fence else fence
        else:
            kept.append(line)
    return "\n".join(kept)
