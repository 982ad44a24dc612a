"""Rules about copies between host and device, on handwritten runs."""

import pytest
from cases import PROGRAM, case, copies, loader, show, site, sound, sync, trace
from rulings import findings_of

from stepscope.record.finding import Place

RULES = (
    "data.no_pinning",
    "transfer.blocking_copies",
    "transfer.not_overlapped",
    "transfer.repeated_copies",
    "transfer.device_to_host",
    "sync.cpu",
    "sync.together",
)
LOOP = {
    50: "for images, labels in loader:",
    51: "    images = images.to(device)",
    52: "    scale = weights.to(device)",
    53: "    loss = model(images, scale)",
}
PAGEABLE = sync("pageable copy", 600.0, count=400, line=51, bytes=10**9)


def found(document, after=None, source=None, window=None, device="cuda"):
    """What the rules find, by id."""
    given = case(device, document, window, after, source)
    return sound(one for name in RULES for one in findings_of(name, given))


def test_batches_of_a_loader_that_does_not_pin():
    document = show(syncs=[PAGEABLE], loaders=[loader(pin_memory=False)])
    result = found(document, after=16.0, source=LOOP)
    assert set(result) == {"data.no_pinning"}
    one = result["data.no_pinning"]
    assert (str(one.fix), one.kind, one.confidence) == ("pin", "exact", "high")
    assert one.where == (Place(PROGRAM, 40), Place(PROGRAM, 51))
    assert one.predicted.step_ms == pytest.approx(16.0)
    assert one.share == pytest.approx(0.2)
    assert "3.00 ms per step" in one.why


def test_without_a_window_what_is_lost_decides():
    document = show(syncs=[PAGEABLE], loaders=[loader(pin_memory=False)])
    one = found(document)["data.no_pinning"]
    assert one.predicted is None
    assert one.share == pytest.approx(0.15)
    assert one.confidence == "medium"
    little = show(syncs=[PAGEABLE | {"lost_ms": 60.0}], loaders=[loader(pin_memory=False)])
    assert found(little) == {}


def test_a_wait_that_only_moves_elsewhere_is_not_told():
    """600 ms are lost there, but the replay gains nothing: the device is what takes the time."""
    document = show(syncs=[PAGEABLE], loaders=[loader(pin_memory=False)])
    assert found(document, after=19.9) == {}


def test_copies_in_every_epoch_only_are_left_alone():
    document = show(syncs=[PAGEABLE | {"count": 10}], loaders=[loader(pin_memory=False)])
    assert found(document, after=16.0) == {}


def test_tensors_made_on_the_host_are_blocking_copies():
    document = show(syncs=[PAGEABLE], loaders=[], pipeline=[])
    result = found(document, after=16.0)
    assert set(result) == {"transfer.blocking_copies"}
    one = result["transfer.blocking_copies"]
    assert one.fix is None
    assert "pageable" in one.why
    assert one.where == (Place(PROGRAM, 51),)


def test_pinned_batches_that_are_waited_for():
    document = show(sites=[site("h2d", 51, 300.0)])
    one = found(document, after=16.0, source=LOOP)["transfer.blocking_copies"]
    assert str(one.fix) == "pin"
    assert one.effort == "one argument"
    lines = LOOP | {51: "    images = images.to(device, non_blocking=True)"}
    assert found(document, after=16.0, source=lines) == {}


def test_copies_that_nothing_hides():
    window = trace(copies=[copies("HtoD", "pinned", 24.0, overlapped=0.25)])

    def replayed(*changes):
        return 15.0 if len(changes) > 2 else 19.0  # a batch ahead, or only not waited for

    result = found(show(), replayed, window=window)
    assert set(result) == {"transfer.not_overlapped"}
    one = result["transfer.not_overlapped"]
    assert str(one.fix) == "prefetch"
    assert one.share == pytest.approx(3.0 / 20)
    evidence = {e.what: e.value for e in one.evidence}
    assert evidence["copies to the GPU"] == pytest.approx(4.0)
    assert evidence["not overlapped"] == pytest.approx(3.0)


def test_pinning_alone_may_do():
    window = trace(copies=[copies("HtoD", "pageable", 24.0)])
    assert "transfer.not_overlapped" not in found(show(), after=15.0, window=window)


def test_the_same_data_in_every_step():
    again = sync("pageable copy", 400.0, line=52)
    document = show(syncs=[again], loaders=[loader(pin_memory=False)])
    result = found(document, after=17.0, source=LOOP)
    assert set(result) == {"transfer.repeated_copies"}
    assert found(document, after=20.0, source=LOOP) == {}  # the device is what takes the time
    one = result["transfer.repeated_copies"]
    assert "`weights` is copied" in one.why
    assert one.predicted.step_ms == pytest.approx(18.0)


def test_copies_that_need_not_be_are_not_to_be_made_beside_compute():
    again = sync("pageable copy", 400.0, line=52)
    window = trace(copies=[copies("HtoD", "pageable", 24.0)])

    def replayed(*changes):
        return 15.0 if any("overlap" in change.__qualname__ for change in changes) else 17.0

    alone = show(syncs=[again], sites=[])
    found_alone = found(alone, after=replayed, source=LOOP, window=window)
    assert set(found_alone) == {"transfer.repeated_copies"}
    both = found(show(syncs=[again, PAGEABLE]), after=replayed, source=LOOP, window=window)
    assert "transfer.not_overlapped" in both


@pytest.mark.parametrize(
    ("line", "more"),
    [
        ("    scale = weights.to(device)", {53: "    weights = model.make()"}),
        ("    scale = weights.to(device)", {53: "    weights[0] = 1"}),
        ("    scale = weights.to(device)", {53: "    weights.mul_(2)"}),
        ("    scale = labels.to(device)", {}),
        ("    labels = labels.to(device)", {}),
        ("    x = batch['weights'].to(device)", {}),
    ],
)
def test_what_the_loop_changes_is_not_the_same_data(line, more):
    again = sync("pageable copy", 400.0, line=52)
    document = show(syncs=[again], loaders=[loader(pin_memory=False)])
    result = found(document, after=16.0, source=LOOP | {52: line} | more)
    assert set(result) == {"data.no_pinning"}


def test_a_modules_own_tensor_is_the_same_data():
    lines = {51: "def forward(self, x):", 52: "    return x + self.table.to(x.device)"}
    document = show(syncs=[sync("pageable copy", 400.0, line=52)])
    assert set(found(document, source=lines)) == {"transfer.repeated_copies"}
    lines[52] = "    return x + table.to(x.device)"
    assert "transfer.repeated_copies" not in found(document, source=lines)


def test_many_tensors_that_come_back():
    document = show(syncs=[sync("cpu", 500.0, count=2000), sync("numpy", 100.0, line=61)])
    result = found(document, after=17.0)
    assert set(result) == {"transfer.device_to_host"}
    one = result["transfer.device_to_host"]
    assert "11 times per step" in one.why
    assert "torch.stack" in one.advice
    assert len(one.predicted.changes) == 2, "neither waits nor, in most steps, copies"


def test_one_tensor_that_comes_back_is_a_wait():
    assert set(found(show(syncs=[sync("cpu", 500.0)]), after=17.0)) == {"sync.cpu"}


def test_programs_on_the_cpu_copy_nothing():
    document = show("cpu", syncs=[PAGEABLE, sync("cpu", 500.0)])
    assert found(document, after=10.0, device="cpu") == {}
