"""From recorded to bare host time, on rows made by hand. Times are milliseconds."""

import numpy as np
import pytest

from stepscope.analyze.replay.calibration import bare_times, calibrate
from stepscope.analyze.replay.host_chain import WindowClocks
from stepscope.analyze.replay.tasks import BARE_HOST_SHARE
from stepscope.analyze.run.steps import assemble_steps
from stepscope.record.row_log import FLAG_PROFILED, FLAG_STACKS, ROW_COLUMNS, STEP_PHASES, RowKind

MS = 1e6
START = 1_000 * MS
BARE = {"data_wait": 1.0, "forward": 3.0, "backward": 4.0, "optimizer": 1.0, "other": 1.0}
SLOWED = {"data_wait": 1.0, "forward": 4.0, "backward": 8.0, "optimizer": 2.0, "other": 1.25}


def row(kind, times, flags=0, device=float("nan")):
    made = dict.fromkeys(ROW_COLUMNS, 0.0) | {"kind": float(kind), "flags": float(flags)}
    made |= {name: device * MS for name in ROW_COLUMNS if name.startswith("device_")}
    made |= {f"{phase}_ns": ms * MS for phase, ms in times.items()}
    made["end_ns"] = sum(times.values()) * MS
    if kind == RowKind.STEP:
        made |= {"forwards": 1.0, "backwards": 1.0}
    return made


def table(rows):
    made = np.zeros(len(rows), dtype=[(name, "<f8") for name in ROW_COLUMNS])
    for index, values in enumerate(rows):
        for name, value in values.items():
            made[name][index] = value
    made["end_ns"] = START + np.cumsum(made["end_ns"])
    return made


def run(bare=BARE, slowed=SLOWED, window=4, after=40, between=(), **about):
    def steps(count, times, flags=0):
        return [row(RowKind.STEP, times, flags, **about) for _ in range(count)]

    return table(
        [
            *steps(12, bare),
            row(RowKind.WINDOW, {"observer": 50.0}),
            *steps(1, slowed, FLAG_PROFILED),
            *between,
            *steps(window - 1, slowed, FLAG_PROFILED),
            row(RowKind.WINDOW, {"observer": 80.0}, FLAG_PROFILED),
            *steps(1, bare, FLAG_PROFILED),
            row(RowKind.WINDOW, {"observer": 50.0}, FLAG_PROFILED),
            *steps(2, {phase: 3 * ms for phase, ms in bare.items()}, FLAG_PROFILED | FLAG_STACKS),
            row(RowKind.WINDOW, {"observer": 80.0}, FLAG_PROFILED | FLAG_STACKS),
            *steps(1, bare, FLAG_PROFILED | FLAG_STACKS),
            *steps(after, bare),
        ]
    )


def calibrated(rows, **about):
    return calibrate(rows, assemble_steps(rows, START), **about)


def test_factors_are_bare_over_recorded_time_phase_by_phase():
    found = calibrated(run(), first=2)
    assert found.factors == pytest.approx(
        {"data_wait": 1, "h2d": 1, "forward": 0.75, "backward": 0.5, "optimizer": 0.5, "other": 0.8}
    )
    assert found.window == 4  # neither the step after it nor the window with stacks
    assert found.steps == 50
    assert found.step_ms == pytest.approx(10)
    assert found.clocks.forward.tolist() == [4 * MS] * 4
    assert found.outside == pytest.approx(0, abs=1e-9)


def test_steady_steps_leave_no_doubt_and_unsteady_ones_do():
    rows = run(after=80)
    assert calibrated(rows, first=2).error() == pytest.approx(0)
    shaken = rows.copy()
    grown = np.random.default_rng(0).normal(0, 0.4, len(rows)) * MS
    grown[0] = 0
    shaken["forward_ns"] += grown
    shaken["end_ns"] += np.cumsum(grown)
    assert 0.002 < calibrated(shaken, first=2).error() < 0.1


def test_waits_for_the_device_are_in_no_factor():
    waits = {**BARE, "wait": 5.0}
    found = calibrated(run(bare=waits, slowed={**SLOWED, "wait": 1.0}), first=2)
    assert found.factors["forward"] == pytest.approx(0.75)
    assert "wait" not in found.factors
    assert found.step_ms == pytest.approx(15)
    assert sum(found.bare_ms.values()) == pytest.approx(10)


def test_beside_a_device_copies_go_by_the_other_phases_and_nothing_is_slower_bare():
    bare = {**BARE, "h2d": 9.0, "other": 2.0}  # a pageable copy waits for what comes before
    found = calibrated(run(bare, {**SLOWED, "h2d": 1.0}, device=3.0), first=2)
    assert found.factors["h2d"] == pytest.approx(8 / 14)
    assert found.factors["other"] == 1.0


def test_what_belongs_to_no_step_is_not_scaled_into_one():
    """A new epoch in the window: the recording has it, the steps have not."""
    between = (row(RowKind.EPOCH, {"epoch_start": 30.0}, FLAG_PROFILED),)
    found = calibrated(run(between=between), first=2)
    assert found.outside > 0.3
    recorded = np.array([SLOWED.get(phase, 0.0) for phase in STEP_PHASES])
    recorded[STEP_PHASES.index("other")] += 30 / 4
    scaled = found.scale(recorded) * recorded
    assert scaled[STEP_PHASES.index("other")] == pytest.approx(1.0)
    assert scaled.sum() == pytest.approx(10)


def test_the_time_of_a_phase_that_the_recording_does_not_show_is_not_lost():
    found = calibrated(run(), first=2)
    recorded = np.array([SLOWED.get(phase, 0.0) for phase in STEP_PHASES])
    unseen = STEP_PHASES.index("data_wait")
    recorded[unseen] = 0.0
    assert (found.scale(recorded) * recorded).sum() == pytest.approx(10)


def test_a_part_of_the_bare_steps_can_be_kept_for_testing():
    found = calibrated(run(), first=2, use=lambda count: np.arange(count) % 2 == 0)
    assert found.steps == 25
    assert found.factors["forward"] == pytest.approx(0.75)


def test_without_a_window_or_without_bare_steps_there_is_no_calibration():
    rows = run()
    plain = rows[rows["flags"] == 0]
    plain = plain[plain["kind"] != RowKind.WINDOW]
    assert calibrated(plain) is None
    inside = rows[rows["flags"] > 0]
    first = rows[rows["kind"] == RowKind.WINDOW][:1]
    assert calibrated(np.concatenate((first, inside))) is None
    assert calibrated(rows[:0]) is None


def test_clocks_of_another_number_of_steps_are_averaged():
    clocks = WindowClocks(np.array([1.0, 3.0]), np.array([2.0, 2.0]))
    assert clocks.for_steps(2) is clocks
    assert clocks.for_steps(3).forward.tolist() == [2.0, 2.0, 2.0]
    assert WindowClocks(np.zeros(0), np.zeros(0)).for_steps(3) is None


def held_up(free=5, after=40):
    """A run beside a device whose queue is full in all steps but some after the windows."""
    held = BARE | {"forward": 6.0, "backward": 8.0}
    rows = run(bare=held, device=2.0, after=0)
    steps = [row(RowKind.STEP, BARE, device=2.0) for _ in range(free)]
    steps += [row(RowKind.STEP, held, device=2.0) for _ in range(after)]
    more = table(steps)
    more["end_ns"] += rows["end_ns"][-1] - START
    return np.concatenate([rows, more])


def test_a_host_that_a_full_queue_holds_up_is_known_by_the_steps_after_the_window():
    found = calibrated(held_up(), first=20)
    held = found.with_device_busy(found.step_ms)
    assert held.held
    assert held.bare_ms["forward"] == pytest.approx(3)
    assert held.bare_ms["backward"] == pytest.approx(4)
    assert held.step_ms == found.step_ms > 14, "the step itself stays what it is"
    recorded = np.array([held.window_ms[phase] for phase in STEP_PHASES])
    scale = dict(zip(STEP_PHASES, held.scale(recorded), strict=True))
    assert scale["forward"] * 4 == pytest.approx(3)
    assert scale["backward"] * 8 == pytest.approx(4)


def test_a_host_beside_an_idle_device_is_taken_as_its_clocks_say():
    found = calibrated(held_up(), first=20)
    assert found.with_device_busy(0.9 * found.step_ms) is found
    assert found.bare_ms["forward"] == pytest.approx(6, rel=0.1)


def test_some_steps_that_took_far_longer_do_not_hide_a_device_that_sets_the_pace():
    rows = held_up()
    rows["end_ns"][-1] += 60 * MS
    rows["wait_ns"][-1] += 60 * MS
    found = calibrated(rows, first=20)
    assert found.step_ms > found.usual_ms / 0.95
    assert found.with_device_busy(found.usual_ms).held


def test_a_held_up_host_that_is_never_free_is_scaled_by_a_prior():
    found = calibrated(held_up(free=1), first=20)
    held = found.with_device_busy(found.step_ms)
    assert not held.held
    assert held.factors["forward"] == BARE_HOST_SHARE
    assert held.factors["other"] == found.factors["other"]
    assert calibrated(run(device=2.0, after=1), first=2).free_ms == {}
    assert calibrated(run(), first=2).free_ms == {}


def test_what_recording_does_not_stretch_stays_and_the_phase_as_a_whole_follows_the_clocks():
    duration = np.array([4.0, 4.0, 10.0, 2.0])
    phase = np.array([0, 0, 1, 0])
    fixed = np.array([True, False, False, False])
    found = bare_times(duration, phase, np.array([0.7, 0.5]), fixed)
    assert found.tolist() == pytest.approx([4.0, 2.0, 5.0, 1.0])


def test_what_recording_does_not_stretch_leaves_the_rest_half_its_time():
    found = bare_times(
        np.array([9.0, 1.0]), np.zeros(2, int), np.array([0.5]), np.array([True, False])
    )
    assert found.tolist() == pytest.approx([4.75, 0.25])
