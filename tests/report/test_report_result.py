"""Results as objects: what they hold, and how they show themselves."""

import builtins
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bench_documents import document, point
from stories import hostile, kernels, whole
from story_reading import TRACES, unpacked

import stepscope
from stepscope.record.errors import UsageError
from stepscope.report.render.notebook.figures import Drawing, ResultTable, standalone_figure
from stepscope.report.render.notebook.objects import compact_html, in_iframe
from stepscope.report.story.blocks import Chart, Column, Section, Table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return unpacked("loader_transform", tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def run(folder):
    return stepscope.load(folder)


def test_a_run_is_loaded_with_its_document_and_story(run, folder):
    assert (run.kind, run.folder) == ("run", folder)
    assert run.document["schema"] == "stepscope.show/2"
    assert run.story.kind == "run"
    assert "data loader" in run.story.verdict


def test_the_last_run_is_loaded_where_none_is_named(tmp_path, monkeypatch):
    home = tmp_path / ".stepscope"
    unpacked("loader_transform", home)
    monkeypatch.chdir(tmp_path)
    assert stepscope.load().folder.name == "loader_transform"


def test_what_is_no_result_gets_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("nothing")
    with pytest.raises(UsageError, match="not a run folder, a trace"):
        stepscope.load("notes.txt")


def test_a_trace_is_loaded_too():
    trace = stepscope.load(next(iter(sorted(TRACES.glob("*.json.gz")))))
    assert (trace.kind, trace.folder) == ("trace", None)
    assert trace.steps() == {}


def test_a_bench_is_loaded_from_its_json(tmp_path):
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(document(point(batch=32), point(batch=64, mean_ms=30.0))))
    bench = stepscope.load(file)
    assert bench.kind == "bench"
    assert "resnet18" in repr(bench)
    assert "resnet18" in bench._repr_html_()
    assert bench.charts


def test_a_result_prints_the_screen_without_colours(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = repr(run)
    assert "4.11 ms per step" in shown
    assert "\x1b" not in shown


def test_redacted_results_name_no_paths(folder):
    told = stepscope.load(folder, redact=True)
    assert "/home/me" not in repr(told)
    assert "/home/me" not in told.html()


def test_steps_are_arrays(run):
    steps = run.steps()
    assert steps["duration_ms"].shape == (80,)
    parts = ("data_wait", "h2d", "forward", "backward", "optimizer", "wait", "other")
    total = sum(steps[f"{part}_ms"] for part in parts)
    assert np.allclose(total, steps["duration_ms"], rtol=1e-6)


def test_charts_and_tables_are_found_by_their_ids(run):
    assert run.chart("phases").chart.title == "Where a step's time goes"
    assert run.table("sinks").rows[0]["what"] == "waiting for the data loader"
    with pytest.raises(UsageError, match=r"no chart nonsense here: .*phases"):
        run.chart("nonsense")
    with pytest.raises(UsageError, match="no table nonsense here"):
        run.table("nonsense")


def test_columns_are_arrays_with_nan_for_what_is_not_known():
    columns = (Column("name"), Column("time", "ms", number=True))
    table = ResultTable(Table("t", columns, (("a", 1.5), ("b", None))))
    arrays = table.numpy()
    assert arrays["name"].tolist() == ["a", "b"]
    assert arrays["time [ms]"][0] == 1.5
    assert math.isnan(arrays["time [ms]"][1])
    assert repr(table).splitlines() == ["name  time [ms]", "a          1.50", "b             –"]


def test_an_empty_table_has_columns_all_the_same():
    table = ResultTable(Table("t", (Column("name"),), ()))
    assert table.rows == []
    assert table.numpy()["name"].shape == (0,)
    assert repr(table) == "name"


def test_rows_beyond_those_shown_are_counted():
    table = ResultTable(kernels(60))
    assert len(table) == 60
    assert "more: .rows" in table._repr_html_()


def test_pandas_is_asked_for_where_it_is_missing(monkeypatch):
    def without(name, *rest, **more):
        if name == "pandas":
            raise ImportError(name)
        return real(name, *rest, **more)

    real = builtins.__import__
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match="pip install pandas"):
        ResultTable(kernels(3)).to_pandas()


def test_a_figure_has_a_title_and_colours_of_its_own(run):
    made = standalone_figure(run.chart("phases").chart)
    assert made["layout"]["title"]["text"] == "Where a step's time goes"
    assert "var(--" not in str(made)
    assert made["data"][0]["marker"]["color"].startswith("#")


def test_every_chart_is_a_figure_plotly_accepts():
    charts = [
        block for part in whole().sections for block in part.blocks if isinstance(block, Chart)
    ]
    figures = [Drawing(chart).plotly() for chart in charts]
    assert len(figures) == len(charts) > 4
    assert all(len(made.data) for made in figures)


def test_a_figure_reads_no_tags_of_strangers():
    story = hostile(whole())
    chart = next(b for part in story.sections for b in part.blocks if isinstance(b, Chart))
    text = standalone_figure(chart)["layout"]["title"]["text"]
    assert "<script" not in text
    assert "<img" not in text


def test_a_table_in_a_notebook_escapes_strangers_text():
    rows = (("<img src=x onerror=alert(1)>\x1b[2J",),)
    html = ResultTable(Table("t", (Column("<b>name"),), rows))._repr_html_()
    assert "<img" not in html
    assert "<b>" not in html
    assert "\x1b" not in html


def test_a_framed_page_is_an_attribute_of_a_frame_that_can_touch_nothing():
    html = in_iframe('<html><head>\n</head>"><script>alert(1)</script>', 300)
    assert html.count("<") == 2  # the frame's own two tags
    assert "allow-same-origin" not in html
    assert 'sandbox="allow-scripts' in html


def test_the_short_form_keeps_what_tells_most_and_stays_small():
    story = whole()
    html = compact_html(story)
    assert len(html) < 150_000
    assert "id=&quot;chart-library" not in html
    assert any(part.id == "findings" for part in story.sections)
    assert "The GPU waits for the data loader" in html


def test_a_story_without_any_block_is_shown_too():
    from dataclasses import replace

    html = compact_html(replace(whole(), sections=(Section("summary", "At a glance", ()),)))
    assert "iframe" in html


def test_an_observed_run_is_under_way_until_it_is_over(tmp_path):
    from stepscope.api import Observed

    observed = Observed(tmp_path)
    assert "in progress" in repr(observed)
    assert observed._repr_html_() is None
    with pytest.raises(UsageError, match="in progress"):
        _ = observed.result


def test_looking_at_a_result_imports_no_torch(folder):
    code = "import sys, stepscope; r = stepscope.load(sys.argv[1]); r.html(); repr(r)"
    code += "; sys.exit('torch' in sys.modules)"
    source = str(Path(stepscope.__file__).parent.parent)
    environ = {**os.environ, "PYTHONPATH": source}
    ended = subprocess.run([sys.executable, "-c", code, str(folder)], env=environ, timeout=100)
    assert ended.returncode == 0
