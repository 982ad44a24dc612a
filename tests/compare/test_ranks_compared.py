"""Runs of several ranks are compared by the steps they take together."""

from ranked import ranked_run

from stepscope.compare.open_sides import side_of
from stepscope.results.load import load


def test_a_run_of_ranks_is_compared_by_its_first_ranks_steps(tmp_path):
    side = side_of(load(ranked_run(tmp_path / "run", ranks=2)))
    (item,) = side.items
    (series,) = item.series
    assert len(series) > 40
    assert abs(sum(series) / len(series) - 22.3) < 1.0
    assert side.program == "train.py"
