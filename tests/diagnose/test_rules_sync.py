"""Rules about waits for the device, on handwritten runs."""

import pytest
from cases import PROGRAM, case, loader, runtime, show, site, sound, sync, trace
from rulings import findings_of

from stepscope.record.finding import Place

RULES = (
    "sync.item",
    "sync.cpu",
    "sync.print",
    "sync.synchronize",
    "sync.nonzero",
    "sync.together",
    "sync.empty_cache",
    "transfer.device_to_host",
    "data.no_pinning",
)


def found(document, after=None, source=None, window=None, device="cuda"):
    """What the rules find, by id."""
    given = case(device, document, window, after, source)
    return sound(one for name in RULES for one in findings_of(name, given))


@pytest.mark.parametrize(
    ("what", "name", "fix"),
    [
        ("item", "sync.item", None),
        ("bool", "sync.item", None),
        ("float", "sync.item", None),
        ("synchronize", "sync.synchronize", "nosync"),
        ("Event.synchronize", "sync.synchronize", None),
        ("nonzero", "sync.nonzero", None),
        ("masked_select", "sync.nonzero", None),
        ("numpy", "sync.cpu", None),
        ("to('cpu')", "sync.cpu", None),
    ],
)
def test_a_wait_is_told_by_what_waits(what, name, fix):
    result = found(show(syncs=[sync(what, 600.0)]), after=16.0)
    assert set(result) == {name}
    one = result[name]
    assert one.where == (Place(PROGRAM, 60),)
    assert one.fix == fix or str(one.fix) == fix
    assert (one.kind, one.confidence) == ("exact", "high")
    assert one.predicted.step_ms == pytest.approx(16.0)
    assert one.share == pytest.approx(0.2)
    assert one.evidence[0].value == pytest.approx(3.0)
    assert one.evidence[0].unit == "ms per step"


def test_a_summed_loss_can_be_read_late():
    lines = {60: "        total += loss.item()"}
    one = found(show(syncs=[sync("item", 600.0)]), 16.0, lines)["sync.item"]
    assert str(one.fix) == "lazyitem"
    lines = {60: "        if loss.item() > best:"}
    assert found(show(syncs=[sync("item", 600.0)]), 16.0, lines)["sync.item"].fix is None


@pytest.mark.parametrize(
    "line", ["print(step, loss)", 'bar.set_postfix(loss=f"{loss:.3f}")', "logger.info(loss)"]
)
def test_printing_is_told_as_such(line):
    result = found(show(syncs=[sync("item", 600.0)]), 16.0, {60: line})
    assert set(result) == {"sync.print"}


def test_of_one_kind_each_line_gets_its_part_of_the_gain():
    syncs = [sync("item", 450.0, line=60), sync("item", 150.0, line=70)]
    result = found(show(syncs=syncs), 16.0, {70: "print(loss.item())"})
    assert result["sync.item"].predicted.step_ms == pytest.approx(17.0)
    assert result["sync.print"].predicted.step_ms == pytest.approx(19.0)


def test_lost_time_is_not_added_up_where_the_replay_gains_nothing():
    assert found(show(syncs=[sync("item", 2000.0)]), after=19.8) == {}


def test_without_a_window_lost_time_decides_and_nothing_is_promised():
    one = found(show(syncs=[sync("item", 600.0)]))["sync.item"]
    assert one.predicted is None
    assert one.share == pytest.approx(0.15)
    assert one.confidence == "medium"
    assert found(show(syncs=[sync("item", 60.0)])) == {}


def test_a_wait_every_fifty_steps_lets_the_device_catch_up():
    assert found(show(syncs=[sync("item", 600.0, count=4)])) == {}


def test_waits_that_gain_only_together():
    syncs = [sync("item", 300.0), sync("pageable copy", 300.0, line=51)]

    def replayed(*changes):
        waits = [one for one in changes if "drop_waits" in one.__qualname__]
        return 15.0 if waits and len(changes) > 1 else 19.9

    result = found(show(syncs=syncs, loaders=[loader(pin_memory=False)]), replayed)
    assert set(result) == {"sync.together"}
    one = result["sync.together"]
    assert one.where == (Place(PROGRAM, 60), Place(PROGRAM, 51))
    assert one.predicted.step_ms == pytest.approx(15.0)
    assert "waiting at 2 lines" in one.predicted.reason


def test_where_one_wait_gains_alone_they_are_not_told_together():
    syncs = [sync("item", 300.0), sync("pageable copy", 300.0, line=51)]
    assert "sync.together" not in found(show(syncs=syncs), after=16.0)


def idle_at(operator, where=None, ns=24_000_000):
    place = {"where": where, "operator": operator, "total_ns": ns}
    return [{"device": 0, "idle": {"synchronisation": {"total_ns": ns, "places": [place]}}}]


def test_masks_are_seen_by_the_recording_only():
    window = trace(devices=idle_at("aten::nonzero", "train.py(60): main"))
    one = found(show(), after=16.0, window=window)["sync.nonzero"]
    assert one.where == (Place("train.py", 60, "aten::nonzero"),)
    assert one.evidence[0].value == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("operator", "name"),
    [("aten::_local_scalar_dense", "sync.item"), ("aten::copy_", "sync.cpu"),
     (None, "sync.synchronize"), ("aten::index", "sync.nonzero")],
)  # fmt: skip
def test_a_trace_alone_tells_waits_by_operator(operator, name):
    window = trace(devices=idle_at(operator))
    result = found(None, after=20.0, window=window)
    assert set(result) == {name}
    assert result[name].fix is None


def test_programs_on_the_cpu_wait_for_nothing():
    document = show("cpu", syncs=[sync("item", 600.0)])
    assert found(document, after=10.0, device="cpu") == {}


FREES = [runtime("cudaFree", 60, 12.0), runtime("cudaMalloc", 60, 18.0)]


def test_memory_given_back_in_the_loop():
    window = trace(host={"runtime": FREES})
    lines = {61: "    torch.cuda.empty_cache()"}
    document = show(sites=[site("optimizer", 59, 300.0)])
    result = found(document, 16.0, lines, window)
    assert set(result) == {"sync.empty_cache"}
    one = result["sync.empty_cache"]
    assert one.where == (Place(PROGRAM, 61),)
    assert (one.effort, one.confidence) == ("one line", "high")
    assert "10 times per step" in one.why
    assert one.evidence[1].value == pytest.approx(5.0)


def test_an_allocator_short_of_memory_frees_for_another_reason():
    window = trace(host={"runtime": FREES})
    assert found(show(gpu={"allocator_retries": 3}), 16.0, window=window) == {}


def test_a_stray_free_is_no_habit():
    window = trace(host={"runtime": [runtime("cudaFree", 1, 12.0)]})
    assert found(show(), 16.0, window=window) == {}
