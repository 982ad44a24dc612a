"""Waits are charged to the work that was waited for; sums stay what they are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyze.run.steps import (
    DEVICE_PHASES,
    HOST_PHASES,
    Steps,
    charge_waits,
    mean_device_phases,
    mean_host_phases,
    phases_by_device,
)
from stepscope.record.row_log import STEP_PHASES

HOST_MS = {
    "data_wait": 1.0, "h2d": 2.0, "forward": 3.0, "backward": 4.0, "optimizer": 1.0,
    "wait": 0.0, "other": 1.0,
}  # fmt: skip
DEVICE_MS = {"h2d": 2.0, "forward": 3.0, "backward": 4.0, "optimizer": 1.0, "other": 0.0}
TIME = st.floats(0, 1000)


def host(**more):
    return HOST_MS | more


def device(**more):
    return DEVICE_MS | more


def steps(count, device_ms=None, **host_ms):
    """Steps whose host phases are the given ms, one value or one a step."""
    full = {name: np.broadcast_to(host_ms.get(name, 0.0), count) * 1e6 for name in HOST_PHASES}
    timed = {
        name: np.broadcast_to((device_ms or {}).get(name, np.nan), count) * 1e6
        for name in DEVICE_PHASES
    }
    duration = np.sum(list(full.values()), axis=0)
    nothing = np.zeros(count)
    return Steps(
        duration, np.cumsum(duration), full, timed, nothing, nothing, nothing > 0, nothing == 0,
        nothing > 0, False, "training", {}, {},
    )  # fmt: skip


def test_without_waits_the_phases_are_the_hosts():
    expected = {name: HOST_MS[name] for name in STEP_PHASES}
    assert charge_waits(host(), None) == expected
    assert charge_waits(host(), device()) == expected


def test_the_phases_are_those_of_a_step_in_their_order():
    assert tuple(charge_waits(host(wait=5), device(backward=9))) == STEP_PHASES


def test_without_a_device_a_wait_is_other():
    assert charge_waits(host(wait=5), None)["other"] == 6


def test_a_wait_goes_to_the_phase_the_device_is_behind_in():
    phases = charge_waits(host(wait=5), device(backward=20))
    assert phases["backward"] == 9
    assert phases["other"] == 1


def test_a_wait_is_shared_in_proportion_to_how_far_the_device_is_behind():
    phases = charge_waits(host(wait=6), device(forward=3 + 10, backward=4 + 20))
    assert phases["forward"] == pytest.approx(5)
    assert phases["backward"] == pytest.approx(8)


def test_what_the_device_does_not_explain_is_other():
    phases = charge_waits(host(wait=10), device(backward=6))
    assert phases["backward"] == 6
    assert phases["other"] == 9


def test_a_device_that_is_never_behind_explains_no_wait():
    assert charge_waits(host(wait=5), device())["other"] == 6


def test_a_pageable_copy_that_waits_for_a_backward_is_backward():
    phases = charge_waits(host(h2d=30), device(h2d=2, backward=4 + 28))
    assert phases["h2d"] == pytest.approx(2)
    assert phases["backward"] == pytest.approx(4 + 28)


def test_what_is_given_is_left_unchanged():
    given_host, given_device = host(wait=5), device(backward=9)
    charge_waits(given_host, given_device)
    assert given_host == host(wait=5)
    assert given_device == device(backward=9)


@settings(max_examples=60)
@given(
    st.fixed_dictionaries(dict.fromkeys(HOST_PHASES, TIME)),
    st.none() | st.fixed_dictionaries(dict.fromkeys(DEVICE_PHASES, TIME)),
)
def test_the_phases_add_up_to_what_the_host_spent(spent, timed):
    phases = charge_waits(spent, timed)
    assert sum(phases.values()) == pytest.approx(sum(spent.values()), rel=1e-9, abs=1e-9)
    assert all(value >= -1e-9 for value in phases.values())
    assert phases["data_wait"] == spent["data_wait"]


def test_host_means_are_over_the_steps_in_use():
    made = steps(4, forward=np.array([100.0, 2.0, 4.0, 100.0]), wait=1.0)
    use = np.array([False, True, True, False])
    means = mean_host_phases(made, use)
    assert means["forward"] == 3
    assert means["wait"] == 1
    assert set(means) == set(HOST_PHASES)


def test_means_of_the_host_add_up_to_the_mean_step():
    made = steps(3, forward=np.array([1.0, 2.0, 3.0]), data_wait=0.5, other=0.25)
    use = np.ones(3, bool)
    assert sum(mean_host_phases(made, use).values()) == pytest.approx(made.duration.mean() / 1e6)


def test_device_means_leave_out_steps_that_were_not_timed():
    made = steps(4, DEVICE_MS | {"forward": np.array([np.nan, 2.0, 4.0, np.nan])})
    assert mean_device_phases(made, np.ones(4, bool))["forward"] == 3


def test_without_any_timed_step_there_are_no_device_means():
    assert mean_device_phases(steps(4), np.ones(4, bool)) is None
    made = steps(2, DEVICE_MS | {"forward": np.array([np.nan, 2.0])})
    assert mean_device_phases(made, np.array([True, False])) is None


def test_phases_of_the_device_are_scaled_to_the_step():
    device = {"h2d": 1.0, "forward": 10.0, "backward": 20.0, "optimizer": 1.0, "other": 0.0}
    phases = phases_by_device(device, 64.0)
    assert phases == {
        "data_wait": 0.0, "h2d": 2.0, "forward": 20.0, "backward": 40.0, "optimizer": 2.0,
        "other": 0.0,
    }  # fmt: skip
