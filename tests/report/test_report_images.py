"""Charts as pictures."""

import math
import sys
from xml.etree import ElementTree

import pytest
from stories import charts, hostile, whole

from stepscope.record.errors import MissingExtra
from stepscope.report.render import images
from stepscope.report.render.images import label_text
from stepscope.report.story.blocks import Axis, Chart, Section, Series, Story

STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("chart", charts(), ids=lambda chart: chart.kind + "-" + chart.id)
def test_every_kind_of_chart_is_drawn(chart, tmp_path):
    images.write_image(chart, tmp_path / "a.png", titled=True)
    assert (tmp_path / "a.png").read_bytes().startswith(STARTS["png"])


@pytest.mark.parametrize("ending", STARTS)
def test_the_same_chart_gives_the_same_bytes(ending, tmp_path):
    chart = charts()[4]
    paths = [tmp_path / f"{n}.{ending}" for n in (1, 2)]
    for path in paths:
        images.write_image(chart, path)
    assert paths[0].read_bytes().startswith(STARTS[ending])
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_hostile_names_are_drawn_as_they_are(tmp_path):
    chart = hostile(charts()[4])
    images.write_image(chart, tmp_path / "a.svg", titled=True)
    tags = {one.tag.rpartition("}")[2] for one in ElementTree.parse(tmp_path / "a.svg").iter()}
    assert not tags & {"script", "a", "image", "foreignObject"}


def test_what_looks_like_a_formula_is_none(tmp_path):
    chart = Chart("a", "bars", r"$\frac{", (Series("", [r"$x$ \y$"], [1.0]),), y=Axis("$"))
    images.write_image(chart, tmp_path / "a.svg", titled=True)
    drawn = (tmp_path / "a.svg").read_text()
    assert r"$x$ \y$" in drawn
    assert r"$\frac{" in drawn
    assert "$" not in label_text("no dollars here")


def test_nothing_but_gaps_is_drawn_too(tmp_path):
    series = Series("", ["a", "b"], [math.nan, math.nan], low=[math.nan] * 2, high=[math.nan] * 2)
    for kind in ("bars", "stacked", "line", "scatter", "histogram"):
        images.write_image(Chart("a", kind, "t", (series,)), tmp_path / f"{kind}.png")
        assert (tmp_path / f"{kind}.png").stat().st_size


def test_empty_charts_are_left_out():
    empty = Chart("e", "line", "t", (Series("", [], []),))
    story = Story("", "", "", (Section("s", "S", (empty, charts()[0])),), "run")
    assert [chart.id for chart in images.drawable_charts(story)] == ["step"]
    assert len(images.drawable_charts(whole())) == 7


def test_without_matplotlib_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"stepscope\[report\]"):
        images.write_image(charts()[0], tmp_path / "a.png")
