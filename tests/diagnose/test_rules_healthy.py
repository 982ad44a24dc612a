"""What is told to be fine."""

import pytest
from cases import case, dataset, kernel, show, sound, trace
from rulings import findings_of


def found(document, window=None, device="cuda"):
    """What the rule finds, by id."""
    return sound(
        one
        for rule_id in ("healthy.fine", "healthy.limit")
        for one in findings_of(rule_id, case(device, document, window))
    )


def roofline(least_ns, time_ns=100_000_000):
    """A window whose products could take so much less."""
    kind = {"name": "aten::mm", "time_ns": time_ns, "least_ns": least_ns}
    return {"ceilings": {"bytes_per_s": 4.8e12}, "kinds": [kind]}


def test_a_healthy_run_on_a_gpu():
    one = found(show(), trace())["healthy.fine"]
    assert one.title == "OK: data, GPU busy, copies"
    assert (one.share, one.predicted, one.fix) == (0.0, None, None)
    assert "GPU busy 97 %" in one.why
    assert "products on tensor cores 100 %" in one.why


def test_what_costs_something_is_not_called_fine():
    spoiled = show(phases_ms={"data_wait": 9.0}, gpu={"busy_fraction": 0.3}, pipeline=[dataset()])
    window = trace(
        breakdown_ns={"exposed_copy": 30_000_000},
        idle_ns={"synchronisation": 30_000_000},
        tensor_cores={"matrix_share": 0.1},
    )
    assert found(spoiled, window) == {}


def test_nothing_is_said_of_data_where_there_is_no_loader():
    assert found(show("cpu", loaders=[]), trace("cpu"), "cpu") == {}


def test_how_far_the_step_is_from_the_devices_limit():
    """100 of 116 ms could take 50; the other 16 count as they are: 66 ms over 6 steps, of 20."""
    one = found(show(), trace(roofline=roofline(50_000_000)))["healthy.limit"]
    assert one.title == "The step runs at 55% of the device's limit"
    assert one.evidence[0].value == pytest.approx(11.0)


def test_no_kernel_is_slower_than_it_was():
    window = trace(roofline=roofline(900_000_000))
    assert found(show(), window)["healthy.limit"].evidence[0].value == pytest.approx(116 / 6)


def test_no_limit_where_little_is_known():
    known = trace(roofline=roofline(10_000_000, time_ns=20_000_000))
    assert "healthy.limit" not in found(show(), known)
    unknown = trace(roofline=roofline(None))
    assert "healthy.limit" not in found(show(), unknown)
    without = trace(roofline=roofline(50_000_000) | {"ceilings": None})
    assert "healthy.limit" not in found(show(), without)
    idle = trace(roofline=roofline(50_000_000), kernels=[kernel("x", 0)])
    assert "healthy.limit" not in found(show(), idle)
