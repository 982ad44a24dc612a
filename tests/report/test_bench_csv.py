"""A benchmark as CSV."""

import csv
import io

from bench_documents import document, failed, loader_document, point
from msgspec import convert

from stepscope.bench.results import bench_type
from stepscope.report.render.csv_tables import bench_csv


def read(whole):
    return list(csv.DictReader(io.StringIO(bench_csv(convert(whole, bench_type(whole))))))


def rows(*points):
    return read(document(*points))


def test_a_line_for_each_point_with_every_field():
    found = rows(point(), point(fixes=["amp=bf16", "pin"], mean_ms=10.0, ratio=2.0))
    assert found[0]["mean_ms"] == "20.0"
    assert found[1]["fixes"] == "amp=bf16 pin"
    assert found[1]["speedup_ratio"] == "2.0"
    assert found[1]["speedup_verdict"] == "FASTER"


def test_what_was_not_measured_is_empty():
    assert rows(point())[0]["mfu"] == ""
    assert rows(point())[0]["speedup_ratio"] == ""


def test_failures_keep_their_reason():
    found = rows(failed("out_of_memory", 'asked, "much"'))
    assert found[0]["status"] == "out_of_memory"
    assert found[0]["why"] == 'asked, "much"'
    assert found[0]["mean_ms"] == ""


def test_fixes_that_did_not_apply_are_named():
    found = rows(point(fixes=["sdpa"], not_applied=[{"name": "sdpa", "why": "no attention"}]))
    assert found[0]["not_applied"] == "sdpa: no attention"


def test_no_cell_is_a_formula():
    found = rows(failed("failed", "=cmd|'/c calc'!A0"), point(model="@SUM(A1)"))
    assert found[0]["why"].startswith("'=")
    assert found[1]["model"].startswith("'@")


def test_a_loader_grid_has_its_settings():
    found = read({**document(), **loader_document()})
    assert (found[-1]["workers"], found[-1]["pin"], found[-1]["prefetch"]) == ("32", "1", "4")
    assert found[0]["first_batch_ms"] == "120.0"
