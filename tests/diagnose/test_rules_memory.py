"""Rules about memory, on handwritten runs."""

import pytest
from cases import case, loader, runtime, show, sound, trace
from rulings import findings_of

RULES = (
    "memory.near_limit",
    "memory.allocator_retries",
    "memory.activations_dominate",
    "memory.optimizer_state_dominates",
    "memory.batch_could_grow",
)
TOTAL = 150_754_820_096


def found(document, window=None, after=None, device="cuda"):
    """What the rules find, by id."""
    given = case(device, document, window, after)
    return sound(one for name in RULES for one in findings_of(name, given))


def full(share, owners=None):
    """A run whose GPU was so full at its peak."""
    used = {"peak_reserved_bytes": int(share * TOTAL), "peak_allocated_bytes": int(share * TOTAL)}
    return show(gpu=used, memory={"owners": owners or {}})


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_room_to_spare_is_nothing_to_tell(device):
    assert found(show(device), trace(device), after=10.0, device=device) == {}


def test_a_trace_alone_tells_nothing_of_memory():
    assert found(None, trace()) == {}


def test_a_gpu_all_but_full():
    one = found(full(0.95))["memory.near_limit"]
    assert one.title == "GPU memory is 95% full"
    assert (one.share, one.scope, one.predicted) == (0.0, "run", None)
    assert found(full(0.9)) == {}


def test_running_out_is_told_even_where_the_peak_was_low():
    document = show(run={"out_of_memory": {"device": "cuda", "requested_bytes": 10**11}})
    assert found(document)["memory.near_limit"].title == "GPU ran out of memory"


def test_host_memory_counts_against_the_limit_of_its_container():
    document = show(
        "cpu",
        host={"peak_rss_bytes": 7.8e9},
        config={"machine": {"memory": {"limit_bytes": int(8e9)}}},
    )
    assert found(document, device="cpu")["memory.near_limit"].title == "Host memory is 98% full"


def test_activations_ask_for_checkpointing_where_memory_is_scarce():
    activations = {"activations": 0.6 * TOTAL}
    one = found(full(0.85, activations))["memory.activations_dominate"]
    assert str(one.fix) == "checkpointing"
    assert one.kind == "exact"
    assert found(full(0.5, activations)) == {}
    assert found(full(0.85)) == {}


def test_a_full_gpu_with_activations_gets_the_fix_for_them():
    one = found(full(0.95, {"activations": 0.6 * TOTAL}))["memory.near_limit"]
    assert str(one.fix) == "checkpointing"


def test_an_optimizer_that_keeps_more_than_the_model():
    result = found(full(0.85, {"optimizer_state": 0.45 * TOTAL}))
    assert set(result) == {"memory.optimizer_state_dominates"}
    assert "AdamW" in result["memory.optimizer_state_dominates"].why


def test_retries_of_the_allocator():
    document = show(gpu={"allocator_retries": 7})
    calls = {"host": {"runtime": [runtime("cudaMalloc", 12, 6.0), runtime("cudaFree", 12, 6.0)]}}
    one = found(document, trace(**calls), after=18.0)["memory.allocator_retries"]
    assert str(one.fix) == "expandable_segments"
    assert one.share == pytest.approx(0.1)
    assert one.predicted.step_ms == pytest.approx(18.0)
    assert "2.0 ms" in one.predicted.reason


def test_retries_outside_the_window_promise_nothing():
    one = found(show(gpu={"allocator_retries": 1}), trace(), after=18.0)["memory.allocator_retries"]
    assert (one.share, one.predicted) == (0.0, None)


def test_an_empty_gpu_that_waits_for_launches_could_take_more():
    document = show(
        gpu={"busy_fraction": 0.2, "peak_reserved_bytes": 10**10, "peak_allocated_bytes": 10**10},
        loaders=[loader(batch_size=32)],
    )
    waiting = trace(idle_ns={"host": 100_000_000})
    one = found(document, waiting)["memory.batch_could_grow"]
    assert str(one.fix) == "batch=128"
    assert (one.kind, one.share) == ("semantic", 0.0)
    assert "1,600 → 6,400" in one.advice


def test_a_larger_batch_does_not_help_a_gpu_that_waits_for_data():
    document = show(gpu={"busy_fraction": 0.2, "peak_reserved_bytes": 10**10})
    assert found(document, trace(idle_ns={"host": 0, "loader": 100_000_000})) == {}
