"""Stories as LaTeX, compiled where pdflatex is."""

import shutil
import string

import pytest
from stories import HOSTILE, hostile, kernels, whole, without_charts

from stepscope.record.errors import UsageError
from stepscope.report.render import latex
from stepscope.report.render.latex import (
    escape_latex,
    latex_document,
    latex_part,
    latex_table,
    verbatim,
)
from stepscope.report.story.blocks import Column, Section, Story, Table

PDFLATEX = shutil.which("pdflatex")
compiles = pytest.mark.skipif(PDFLATEX is None, reason="pdflatex is not installed")


def compiled(story, folder):
    """The log of compiling a document twice, as bytes of the PDF that came out."""
    source = folder / "a report.tex"
    latex.write_tex(story, source)
    latex.compile_tex(str(PDFLATEX), source)
    return source.with_suffix(".pdf").read_bytes()


@pytest.mark.parametrize("one", [*string.punctuation, "×", "−", "→", "µ", "ü", "中", "😀", "ﬁ"])
def test_every_character_is_escaped_or_spelled(one):
    made = escape_latex(one)
    assert made
    assert made.isascii() or one == "ü"
    assert made != one or one not in "\\{}$&#%_^~"


def test_control_characters_do_not_reach_the_file():
    assert "\x1b" not in escape_latex(HOSTILE)
    assert "\n" not in escape_latex("a\nb")


def test_two_dashes_do_not_become_one():
    assert escape_latex("--fix") == "-{}-fix"


def test_long_names_may_be_broken():
    assert r"\allowbreak{}" in escape_latex("x" * 60)


def test_code_keeps_its_indentation():
    assert verbatim("def f():\n    return 1").count(r"\ ") == 4


def test_wide_tables_are_cut_with_the_first_column_repeated():
    columns = tuple(Column(f"column {n}", number=True) for n in range(30))
    made = latex_table(Table("t", columns, (tuple(range(30)),)))
    assert made.count(r"\begin{longtable}") > 2
    assert made.count("column 0}") == made.count(r"\begin{longtable}")


def test_rows_beyond_those_shown_are_counted():
    assert "40 rows more" in latex_table(kernels(60))
    assert latex_table(Table("t", (Column("a"),), ())) == ""


def test_very_long_names_are_shortened_on_paper_with_their_end_kept():
    made = latex_table(Table("t", (Column("a"),), (("x" * 900 + "END",),)))
    assert len(made) < 2000
    assert r"\ldots{}" in made
    assert "END" in made.replace(r"\allowbreak{}", "")


def test_the_part_says_what_it_needs_and_the_document_takes_it_in():
    assert r"% \usepackage[T1]{fontenc}" in latex_part(without_charts(whole()), {})
    assert r"\input{report-part}" in latex_document(whole(), "report-part")


def test_names_of_parts_are_such_that_tex_reads_them(tmp_path):
    body, folder = latex.tex_files(tmp_path / "my {odd} $name.tex")
    assert (body.name, folder.name) == ("my-odd-name-part.tex", "my-odd-name-figures")


@compiles
def test_a_whole_story_compiles_with_its_figures(tmp_path):
    assert compiled(whole(), tmp_path).startswith(b"%PDF")
    assert (tmp_path / "a-report-figures" / "roofline.pdf").is_file()


@compiles
def test_a_hostile_story_compiles(tmp_path):
    assert compiled(hostile(without_charts(whole())), tmp_path).startswith(b"%PDF")


@compiles
def test_nothing_can_be_read_or_run_by_what_is_typeset(tmp_path):
    (tmp_path / "secret.txt").write_text("SECRET")
    words = r"\input{secret.txt} \immediate\write18{touch owned} ^^5cinput{secret.txt} %"
    story = Story(words, words, words, (Section("s", words, (kernels(2),)),), "run")
    assert compiled(story, tmp_path).startswith(b"%PDF")
    assert not (tmp_path / "owned").exists()
    assert "secret.txt" not in [
        line.strip("()") for line in (tmp_path / "a report.log").read_text().split()
    ]


def test_a_pdf_without_pdflatex_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(latex.shutil, "which", lambda _: None)
    with pytest.raises(UsageError, match="needs pdflatex"):
        latex.write_pdf(whole(), tmp_path / "a.pdf")


@compiles
def test_what_pdflatex_refuses_is_told_in_one_line(tmp_path):
    source = tmp_path / "bad.tex"
    source.write_text(r"\documentclass{article}\begin{document}\nosuch\end{document}")
    with pytest.raises(UsageError, match="Undefined control sequence"):
        latex.compile_tex(str(PDFLATEX), source)
