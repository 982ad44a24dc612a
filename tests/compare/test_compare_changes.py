"""What changed besides speed: phases, settings, surroundings, losses, memory, energy."""

import pytest
from compare_world import run

from stepscope.compare.document import compare_results
from stepscope.compare.quantities import (
    amount_changes,
    compare_losses,
    environment_differences,
    phase_changes,
    setting_differences,
)
from stepscope.report.story.compare import cause_sentence, setting_change, setting_name


def test_phases_are_means_of_the_runs_of_a_side_and_add_up():
    base = [run(phases_ms__forward=2.0), run(phases_ms__forward=4.0)]
    rows = {row.name: row for row in phase_changes(base, [run(phases_ms__forward=6.9)])}
    assert rows["forward"].base_ms == 3.0
    assert rows["forward"].delta_ms == pytest.approx(3.9)
    assert sum(row.base_share for row in rows.values()) == pytest.approx(1)


def test_phases_of_larger_steps_are_brought_to_the_same_samples():
    twice = {f"phases_ms__{name}": 2 * ms for name, ms in run().phases_ms.items()}
    found = compare_results([run(10.0)], [run(20.0, samples=64.0, **twice)])
    assert found.per == "sample"
    assert all(abs(row.delta_ms) < 1e-9 for row in found.phases)


def test_settings_that_differ_are_named_with_both_values():
    other = run(loaders=[{"batch_size": 32, "num_workers": 0, "pin_memory": True}])
    (row,) = setting_differences([run()], [other])
    assert (row.part, row.key, row.base, row.other) == ("loader", "num_workers", 4, 0)
    assert setting_change(row) == "loader num_workers 4 → 0"


def test_a_loader_that_only_one_side_has_is_told_of():
    rows = {row.key: row for row in setting_differences([run()], [run(loaders=[])])}
    assert setting_change(rows["batch_size"]) == "loader batch_size 32 → none"


def test_fixes_and_their_fate_are_settings():
    fixes = [{"name": "workers", "value": 8, "state": "applied"}, {"name": "pin", "state": "broke"}]
    (row,) = setting_differences([run()], [run(fixes=fixes)])
    assert setting_change(row) == "fixes none → workers=8, pin (broke)"


def test_second_optimizers_and_models_are_named():
    two = [{"name": "Adam", "lr": 0.001}, {"name": "SGD", "lr": 0.1}]
    other = [two[0], {"name": "SGD", "lr": 0.2}]
    pair = [run(config__optimizers=two)], [run(config__optimizers=other)]
    assert [setting_name(row) for row in setting_differences(*pair)] == ["optimizer 2 lr"]
    wider = run(config__models=[{"name": "Net", "dtypes": {"float32": 10}, "parameters": 20}])
    assert [setting_name(one) for one in setting_differences([run()], [wider])] == [
        "Net parameters"
    ]


def test_surroundings_say_what_differs_and_what_is_the_same():
    differs, same = environment_differences([run()], [run(run__torch="2.14", run__git="def")])
    assert [row.key for row in differs] == ["torch", "git"]
    assert {"GPU", "driver", "Python"} <= set(same)


def test_memory_is_the_highest_of_a_side_and_energy_the_mean():
    base = [run(memory__peak_bytes=1.0), run(memory__peak_bytes=3.0, gpu__energy_j_per_step=4.0)]
    found = {one.name: one for one in amount_changes(base, [run()])}
    assert found["peak memory"].base == 3.0
    assert found["energy per step"].base == 3.0


def test_a_run_without_gpu_has_no_energy_to_compare():
    names = [one.name for one in amount_changes([run(gpu=None)], [run()])]
    assert names == ["peak memory"]


@pytest.mark.parametrize(
    ("ours", "theirs", "state", "step"),
    [
        ([1.0, 0.5], [1.0, 0.5], "identical", None),
        ([1.0, 0.5, 0.1], [1.0, 0.5], "identical", None),
        ([1.0, 0.5], [1.0, 0.5001], "close", None),
        ([1.0, 0.5, 0.4], [1.0, 0.6, 0.4], "differ", 2),
        ([1.0, None], [1.0, 0.5], "differ", 2),
    ],
)
def test_losses_are_identical_close_or_differ_from_a_step_on(ours, theirs, state, step):
    found = compare_losses([ours], [theirs])
    assert (found.state, found.step) == (state, step)


def test_losses_that_nobody_computed_are_not_compared():
    assert compare_losses([[None, None]], [[None, None]]) is None
    assert compare_losses([], [[1.0]]) is None


def test_runs_of_one_side_show_what_a_difference_of_losses_means():
    assert compare_losses([[1.0], [2.0]], [[3.0]]).control == "differ"
    assert compare_losses([[1.0]], [[3.0]]).control is None


def test_a_slower_loader_is_told_with_the_setting_behind_it():
    other = run(14.0, phases_ms__data_wait=5.0, loaders=[{"batch_size": 32, "num_workers": 0}])
    first = compare_results([run()], [other]).why[0]
    assert cause_sentence(first).startswith("data wait +4.00 ms: loader num_workers 4 → 0")


def test_phases_that_hardly_moved_are_not_told_of():
    assert compare_results([run()], [run(phases_ms__forward=3.05)]).why == ()
