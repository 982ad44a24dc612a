"""Stories as Markdown, read back."""

import re

import pytest
from stories import HOSTILE, LOADER, hostile, kernels, whole
from story_reading import table
from subjects import subject
from tune_documents import tuned

from stepscope.report.render.markdown import markdown, section_text, table_text
from stepscope.report.story.blocks import Axis, Chart, Code, Column, Section, Series, Table
from stepscope.report.story.tune.story import story_of_tune
from stepscope.report.text import format_cell

_CELLS = re.compile(r"(?<!\\)\|")


def read(page):
    """The tables of a page: lists of rows of cells, escapes undone."""
    found, rows = [], []
    for line in [*page.split("\n"), ""]:
        if line.startswith("|"):
            rows.append([_plain(cell) for cell in _CELLS.split(line)[1:-1]])
        elif rows:
            found.append([rows[0], *rows[2:]])
            rows = []
    return found


def _plain(cell):
    cell = cell.strip().replace("<!-- -->", "")
    return re.sub(r"\\(.)", r"\1", cell).replace("&amp;", "&")


def test_a_table_read_back_is_what_was_shown():
    block = kernels(12)
    (found,) = read(table_text(block))
    expected = [
        [format_cell(value, column) for value, column in zip(row, block.columns, strict=True)]
        for row in block.rows
    ]
    assert found[1:] == expected
    assert found[0][2] == "count (per step)"


def test_the_ladder_read_back_has_the_numbers_of_the_tune():
    story = story_of_tune(subject("tune", tuned()))
    block = table(story, "ladder")
    found = next(one for one in read(markdown(story)) if "total" in one[0])
    assert [row[0] for row in found[1:]] == ["baseline", "+ workers=8", "+ pin"]
    assert [float(row[5]) for row in found[1:]] == [row[5] for row in block.rows]


def test_rows_beyond_those_shown_are_counted():
    text = table_text(kernels(60))
    assert len(read(text)[0]) == 1 + kernels().shown
    assert "40 rows more" in text


def test_findings_are_a_table_with_the_command_that_applies_each():
    found = next(one for one in read(markdown(whole())) if "finding" in one[0])
    assert len(found) == 4
    assert LOADER.title in found[1][1]
    assert LOADER.command in found[1][-1]


def test_what_matters_is_in_sight_and_the_rest_folded():
    page = markdown(whole())
    assert "## Findings" in page
    assert "<summary>Kernels</summary>" in page
    assert page.count("<details>") == page.count("</details>")


def test_hostile_words_stay_words():
    page = markdown(hostile(whole()))
    bare = re.sub(r"`[^`\n]*`", "", re.sub(r"(?ms)^(`{3,}).*?^\1$", "", page))
    tags = set(re.findall(r"(?<!\\)<[^>]*>", bare))
    assert tags <= {"<details>", "</details>", "<summary>", "</summary>", "<br>", "<!-- -->"}
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_hostile_cells_do_not_change_the_shape_of_a_table():
    rows = (("a | b", "x\\|y"), ("`c`", "\n| d |"), (HOSTILE, "|"))
    (found,) = read(table_text(Table("t", (Column("p|q"), Column("r")), rows)))
    assert {len(row) for row in found} == {2}
    assert found[1] == ["a | b", "x\\|y"]


@pytest.mark.parametrize("word", ["@torvalds", "https://evil.example", "www.evil.example", "#12"])
def test_nothing_becomes_a_mention_or_a_link_by_itself(word):
    text = table_text(Table("t", (Column("a"),), ((word,),)))
    assert word not in text
    assert read(text)[0][1] == [word]


def test_code_cannot_leave_its_fence():
    (text,) = section_text(Section("s", "S", (Code("```\n# out\n````", "sh"),)))
    assert text.startswith("`````sh\n")
    assert text.endswith("\n`````")


def test_bars_are_a_table_where_no_table_has_their_numbers():
    bars = Chart("b", "bars", "Bars", (Series("n", ["x", "y"], [1.0, 2.0]),), y=Axis("ms"))
    (found,) = read("\n".join(section_text(Section("s", "S", (bars,)))))
    assert found == [["", "n"], ["x", "1.00"], ["y", "2.00"]]
    assert len(section_text(Section("s", "S", (bars, kernels(1))))) == 1
