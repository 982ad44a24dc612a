"""Charts as the chart library gets them."""

import math

import pytest
from stories import charts

from stepscope.report.render.html.charts import (
    figure_height,
    is_wide,
    plotly_figure,
    series_colour,
    treemap_trace,
)
from stepscope.report.story.blocks import Axis, Chart, Role, Series

STEP, LINE, SPREAD, ROOF, BATCHES, LOSSES, TREE = charts()


def test_a_step_is_one_bar_across_made_of_its_phases() -> None:
    made = plotly_figure(STEP)
    assert made["layout"]["barmode"] == "stack"
    assert [trace["orientation"] for trace in made["data"]] == ["h"] * 6
    assert [trace["x"] for trace in made["data"]] == [[48.9], [2.7], [3.0], [5.1], [1.6], [1.8]]
    assert made["layout"]["xaxis"]["title"]["text"] == "ms"
    assert made["layout"]["yaxis"]["type"] == "category"
    assert made["layout"]["height"] < 200


def test_one_thing_with_several_bars_is_named_and_one_bar_of_parts_is_not() -> None:
    several = tuple(Series(name, ["pin"], [2.0]) for name in ("predicted", "measured"))
    named = plotly_figure(Chart("p", "bars", "", several, across=True))
    assert named["layout"]["yaxis"]["showticklabels"] is True
    assert plotly_figure(STEP)["layout"]["yaxis"]["showticklabels"] is False


def test_a_phase_has_the_same_colour_wherever_it_stands() -> None:
    assert series_colour(Role.BACKWARD, 0) == series_colour(Role.BACKWARD, 5)
    assert series_colour(None, 0) != series_colour(None, 1)


def test_nan_becomes_a_gap() -> None:
    gap = plotly_figure(LINE)["data"][1]
    assert gap["y"][0] is None
    assert gap["connectgaps"] is False


def test_bins_are_drawn_as_counted_and_values_are_binned_by_the_library() -> None:
    bins = plotly_figure(SPREAD)["data"][0]
    values = plotly_figure(Chart("h", "histogram", "", (Series("", [], [1.0, 2.0, 2.0]),)))["data"][
        0
    ]
    assert (bins["type"], bins["y"][0]) == ("bar", 5.0)
    assert (values["type"], values["x"]) == ("histogram", [1.0, 2.0, 2.0])


def test_a_roofline_has_points_and_a_dashed_ceiling_on_axes_by_powers_of_ten() -> None:
    made = plotly_figure(ROOF)
    points, ceiling = made["data"]
    assert points["mode"] == "markers"
    assert max(points["marker"]["size"]) / points["marker"]["sizeref"] == pytest.approx(578)
    assert (ceiling["mode"], ceiling["line"]["dash"]) == ("lines", "dash")
    assert made["layout"]["xaxis"]["type"] == made["layout"]["yaxis"]["type"] == "log"


def test_an_interval_is_an_error_bar_or_a_band() -> None:
    bar = plotly_figure(BATCHES)["data"][0]
    low, high, line = plotly_figure(LOSSES)["data"]
    assert bar["error_y"]["array"] == [9.0, 10.0, 11.0]
    assert bar["error_y"]["arrayminus"] == [10.0, 10.0, 10.0]
    assert (high["fill"], high["hoverinfo"], low["showlegend"]) == ("tonexty", "skip", False)
    assert line["name"] == "control"


def test_numbers_as_text_stay_names_on_the_axis() -> None:
    assert plotly_figure(BATCHES)["layout"]["xaxis"]["type"] == "category"


def test_infinite_values_do_not_reach_the_page() -> None:
    made = plotly_figure(Chart("c", "line", "", (Series("s", [1, 2], [math.inf, 1.0]),)))
    assert made["data"][0]["y"] == [None, 1.0]


def test_tiles_with_children_are_as_large_as_those_together() -> None:
    made = plotly_figure(TREE)["data"][0]
    assert made["branchvalues"] == "remainder"
    assert made["values"] == [0.0, 0.0, 0.0, 40.0, 22.0, 9.0, 5.0]
    assert made["parents"] == ["", "0", "0", "1", "1", "2", "2"]


def test_tiles_of_the_same_name_stay_apart_and_circles_are_cut() -> None:
    twice = treemap_trace(
        Series("", ["a", "x", "b", "x"], [0, 1, 0, 2], parents=["", "a", "", "b"])
    )
    named = treemap_trace(
        Series("", ["all", "gemm", "gemm"], [0, 0, 3], parents=["", "all", "gemm"])
    )
    circle = treemap_trace(Series("", ["a", "b"], [1, 2], parents=["b", "a"]))
    absent = treemap_trace(Series("", ["k"], [1.0], parents=["conv"]))
    assert twice["parents"] == ["", "0", "", "2"]
    assert named["parents"] == ["", "0", "1"]
    assert circle["parents"] == ["", "0"]
    assert (absent["labels"], absent["parents"]) == (["k", "conv"], ["1", ""])


def test_charts_without_any_value_are_still_figures() -> None:
    for kind in ("bars", "stacked", "line", "scatter", "histogram", "treemap"):
        empty = Chart("c", kind, "", (Series("s", [], []),), y=Axis(log=True))
        assert len(plotly_figure(empty)["data"]) == 1


def test_many_bars_are_high_but_not_without_end() -> None:
    bars = [
        Chart("c", "bars", "", (Series("s", list(map(str, range(n))), [1.0] * n),), across=True)
        for n in (3, 20, 500)
    ]
    assert figure_height(bars[0]) < figure_height(bars[1]) < figure_height(bars[2]) == 900
    assert is_wide(STEP)
    assert not is_wide(LINE)
