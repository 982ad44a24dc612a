"""Tables as CSV, read back."""

import csv
import io
import zipfile

import pytest
from stories import HOSTILE, kernels
from subjects import subject
from tune_documents import tune_folder, tuned

from stepscope.report.render.csv_tables import csv_text, file_name, formula_safe, report_tables
from stepscope.report.render.files import prepare_report, write_report
from stepscope.report.story.blocks import Column, Table
from stepscope.report.story.tune.story import story_of_tune


def read(text):
    return list(csv.reader(io.StringIO(text)))


def test_csv_read_back_has_every_row_and_every_digit():
    block = kernels(60)
    found = read(csv_text(block))
    assert found[0][2] == "count [per step]"
    for line, row in zip(found[1:], block.rows, strict=True):
        assert line[0] == row[0]
        assert float(line[3]) == row[3]
        assert line[5] == ("" if row[5] is None else str(row[5]))


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "  =", "＝"])
def test_text_that_a_spreadsheet_would_compute_is_guarded(start):
    value = f"{start}HYPERLINK(1)"
    assert formula_safe(value).startswith("'")
    assert read(csv_text(Table("t", (Column(value),), ((value,),))))[1][0].startswith("'")


def test_negative_numbers_stay_numbers():
    assert read(csv_text(Table("t", (Column("n", number=True),), ((-1.5,),))))[1] == ["-1.5"]


def test_hostile_text_stays_one_cell():
    found = read(csv_text(Table("t", (Column("a"), Column("b")), ((f'{HOSTILE},"\n', "x"),))))
    assert len(found[1]) == 2
    assert "\x1b" not in found[1][0]


def test_what_is_not_known_is_empty():
    cells = (None, float("nan"), True, "")
    columns = tuple(Column(str(n)) for n in range(4))
    assert read(csv_text(Table("t", columns, (cells,))))[1] == ["", "", "1", ""]


def test_the_ladder_has_all_its_numbers():
    tune = subject("tune", tuned())
    found = read(csv_text(report_tables([tune], story_of_tune(tune))["ladder"]))
    row = dict(zip(found[0], found[2], strict=True))
    rung = tuned()["ladder"][0]
    assert float(row["predicted low [×]"]) == rung["predicted"]["low"]
    assert float(row["so far high [×]"]) == rung["cumulative"]["high"]
    assert (row["fix"], row["value"]) == ("workers", "8")


def test_names_of_files_hold_nothing_but_plain_letters():
    assert file_name(Table("../../a b", (), ())) == "a-b.csv"
    assert file_name(Table("…", (), ())) == "table.csv"


def test_a_zip_holds_each_table_once(tmp_path):
    what = str(tune_folder(tmp_path / "tune-1"))
    (path,) = write_report(
        prepare_report([what], False, tmp_path), tmp_path / "all.zip", None, None
    )
    with zipfile.ZipFile(path) as packed:
        names = packed.namelist()
        assert read(packed.read("ladder.csv").decode())[1][0] == "baseline"
    assert len(names) == len(set(names))
    assert "rejected.csv" in names
