"""The device's clock on made-up events: polled, pooled, never waited for."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from stepscope.probe import device_clock as device_module
from stepscope.probe.device_clock import DeviceClock
from stepscope.probe.row_log import BACKWARD, FORWARD, H2D, OPTIMIZER, RowLog
from stepscope.record.row_log import RowKind
from stepscope.store.table import read_table

COLUMNS = ("h2d", "forward", "backward", "optimizer", "other")


class Stream:
    """A device's queue: `work` puts time on it, `passed` is how far the device has come."""

    def __init__(self):
        self.queued_ms = 0.0
        self.passed_ms = 0.0
        self.made = 0
        self.synchronized = 0
        self.buffers = 0

    def work(self, ms):
        self.queued_ms += ms

    def catch_up(self):
        self.passed_ms = self.queued_ms


class Event:
    def __init__(self, stream):
        self.stream = stream
        self.at = None
        stream.made += 1

    def record(self):
        self.at = self.stream.queued_ms

    def query(self):
        return self.at <= self.stream.passed_ms

    def elapsed_time(self, other):
        assert self.query(), "elapsed_time of an event the device has not passed raises"
        assert other.query()
        return other.at - self.at

    def synchronize(self):
        self.stream.synchronized += 1
        self.stream.passed_ms = max(self.stream.passed_ms, self.at)


class Buffer:
    """Pinned memory: a copy arrives when the device passes it."""

    dtype = "float32"

    def __init__(self, stream, device, pinned):
        assert (device, pinned) == ("cpu", True)
        stream.buffers += 1
        self.values = []

    def __getitem__(self, part):
        return self

    def copy_(self, values, non_blocking):
        assert non_blocking
        self.values = [value.amount for value in values]

    def tolist(self):
        return self.values


class Device:
    """A clock on a fake stream."""

    def __init__(self, folder):
        self.path = folder / "rows.npy"
        self.log = RowLog(self.path, 0, lambda _: None)
        self.stream = Stream()
        self.clock = DeviceClock(self.log)

    def end_row(self):
        row = self.log.end_row(RowKind.STEP)
        self.clock.end_row(row)
        return row

    def step(self, h2d=1, forward=2, backward=4, optimizer=8, other=16):
        for phase, ms in ((H2D, h2d), (FORWARD, forward), (BACKWARD, backward)):
            self.clock.mark(phase)
            self.stream.work(ms)
        self.clock.mark(OPTIMIZER)
        self.stream.work(optimizer)
        row = self.end_row()
        self.stream.work(other)
        return row

    def phases(self, row):
        found = read_table(self.path)[row]
        return {name: found[f"device_{name}_ns"] / 1e6 for name in COLUMNS}

    def timed(self, row):
        return not math.isnan(self.phases(row)["forward"])

    def timed_soon(self, row):
        """Whether a row is timed once the device has passed it."""
        self.stream.catch_up()
        self.clock.poll()
        return self.timed(row)


@pytest.fixture
def device(tmp_path, monkeypatch):
    """A clock on a torch that only has events."""
    device = Device(tmp_path)
    fake = SimpleNamespace(
        empty=lambda size, dtype, device, pin_memory: Buffer(stream, device, pin_memory),
        stack=list,
        inference_mode=lambda mode: nullcontext(),
    )
    stream = device.stream
    monkeypatch.setattr(device_module, "torch", fake)
    monkeypatch.setattr(device_module, "Event", lambda enable_timing: Event(stream))
    monkeypatch.setattr(device_module, "current_device", lambda: 0)
    monkeypatch.setattr(device_module, "_BUDGET", math.inf)
    monkeypatch.setattr(device_module, "_POLL_NS", -1)
    device.clock.activate()
    return device


def loss(value, kind="cpu"):
    if kind == "cpu":
        return torch.tensor(value)
    where = SimpleNamespace(type=kind, index=0)
    return SimpleNamespace(device=where, is_cuda=kind == "cuda", is_cpu=False)


def test_times_land_in_the_columns_of_their_phases(device):
    device.step()
    row = device.step()
    device.stream.catch_up()
    device.clock.poll()
    assert device.phases(row) == {
        "h2d": 1, "forward": 2, "backward": 4, "optimizer": 8, "other": 16,
    }  # fmt: skip


def test_what_runs_before_a_rows_first_mark_is_other(device):
    device.end_row()
    device.stream.work(5)
    device.clock.mark(FORWARD)
    device.stream.work(1)
    row = device.end_row()
    device.stream.catch_up()
    device.clock.poll()
    assert device.phases(row)["other"] == 5
    assert device.phases(row)["forward"] == 1


def test_phases_that_come_again_in_a_row_add_up(device):
    device.end_row()
    for _ in range(3):
        device.clock.mark(FORWARD)
        device.stream.work(2)
        device.clock.mark(BACKWARD)
        device.stream.work(3)
    row = device.end_row()
    device.stream.catch_up()
    device.clock.poll()
    assert device.phases(row)["forward"] == 6
    assert device.phases(row)["backward"] == 9


def test_the_same_phase_twice_needs_no_second_event(device):
    device.end_row()
    device.clock.mark(FORWARD)
    made = device.stream.made
    device.clock.mark(FORWARD)
    assert device.stream.made == made


def test_the_first_row_has_no_beginning_and_is_not_timed(device):
    row = device.step()
    device.stream.catch_up()
    device.clock.poll()
    assert not device.timed(row)


def test_rows_are_settled_only_once_the_device_has_passed_them(device):
    rows = [device.step() for _ in range(4)]
    assert not any(device.timed(row) for row in rows)
    device.stream.passed_ms = device.stream.queued_ms - 31
    device.clock.poll()
    assert [device.timed(row) for row in rows] == [False, True, True, False]
    device.stream.catch_up()
    device.clock.poll()
    assert device.timed(rows[3])


def test_never_waits_while_the_program_runs(device):
    for _ in range(50):
        device.step()
    assert device.stream.synchronized == 0


def test_waits_at_the_end_so_that_the_last_rows_are_known(device):
    rows = [device.step() for _ in range(4)]
    device.clock.finish()
    assert device.stream.passed_ms == device.stream.queued_ms
    assert all(device.timed(row) for row in rows[1:])


def test_work_after_the_last_mark_is_waited_for_too(device):
    device.step()
    device.stream.work(30.0)
    device.clock.finish()
    assert device.stream.passed_ms == device.stream.queued_ms


def test_catching_up_waits_for_the_device_as_a_part_of_the_last_row(device):
    device.step()
    device.stream.work(30.0)
    device.clock.catch_up()
    assert device.stream.passed_ms == device.stream.queued_ms
    assert device.stream.synchronized == 1


def test_finishing_with_nothing_under_way_waits_for_nothing(device):
    device.clock.finish()
    assert device.stream.synchronized == 0


def test_events_are_used_again(device):
    for _ in range(200):
        device.step()
        device.stream.catch_up()
    assert device.stream.made < 20


def test_a_device_far_behind_is_not_timed_and_memory_stays_bounded(device, monkeypatch):
    monkeypatch.setattr(device_module, "_MOST_PENDING", 16)
    rows = [device.step() for _ in range(100)]
    assert device.stream.made <= 16 * 5 + 10
    device.stream.catch_up()
    late = [device.step() for _ in range(3)]
    device.clock.finish()
    assert [device.timed(row) for row in rows] == [False] + [True] * 16 + [False] * 83
    assert device.timed(late[-1])
    assert device.phases(late[-1])["backward"] == 4
    assert device.phases(rows[15])["backward"] == 4


def test_falling_behind_again_and_again_makes_no_new_events(device, monkeypatch):
    monkeypatch.setattr(device_module, "_MOST_PENDING", 4)

    def fall_behind():
        for _ in range(8):
            device.step()
        device.stream.catch_up()
        device.clock.poll()

    for _ in range(3):
        fall_behind()
    made = device.stream.made
    for _ in range(30):
        fall_behind()
    assert device.stream.made <= made + 3


def test_rows_that_were_not_written_are_passed_over(device):
    device.step()
    device.clock.mark(FORWARD)
    device.clock.end_row(-1)
    row = device.step()
    device.stream.catch_up()
    device.clock.poll()
    assert device.timed(row)


def test_nothing_is_recorded_inside_a_graph_capture(device):
    device.step()
    made = device.stream.made
    device.clock.capturing = True
    device.clock.mark(FORWARD)
    device.clock.loss(loss(1.0, "cuda"))
    device.end_row()
    device.clock.finish()
    assert device.stream.made == made
    assert device.stream.synchronized == 0


def test_on_a_program_without_cuda_there_is_nothing_to_time(tmp_path):
    device = Device(tmp_path)
    device.clock.end_row(device.log.end_row(RowKind.STEP))
    device.clock.finish()
    assert device.stream.made == 0
    assert not device.timed(0)


def test_a_loss_on_the_cpu_is_read_at_once(tmp_path):
    device = Device(tmp_path)
    device.clock.loss(loss(0.5))
    row = device.end_row()
    assert read_table(device.path)["loss"][row] == 0.5


def test_several_losses_of_a_row_give_their_mean(tmp_path):
    device = Device(tmp_path)
    for value in (1.0, 2.0, 6.0):
        device.clock.loss(loss(value))
    row = device.end_row()
    assert read_table(device.path)["loss"][row] == 3.0


def test_a_loss_belongs_to_its_own_row_only(tmp_path):
    device = Device(tmp_path)
    device.clock.loss(loss(0.5))
    device.end_row()
    row = device.end_row()
    assert math.isnan(read_table(device.path)["loss"][row])


def test_a_loss_on_another_kind_of_device_is_left_alone(device):
    device.clock.loss(loss(0.5, "mps"))
    row = device.end_row()
    device.clock.finish()
    assert math.isnan(read_table(device.path)["loss"][row])


def on_cuda(value, index=0):
    inner = SimpleNamespace(amount=value, dtype="float32", _version=0)
    inner.dim = lambda: 0
    inner.is_cuda, inner.get_device = True, lambda: index
    inner.is_floating_point = lambda: True
    return SimpleNamespace(
        get_device=lambda: index,
        is_cuda=True,
        is_cpu=False,
        detach=lambda: inner,
    )


def losses_of(device):
    return read_table(device.path)["loss"]


def test_a_loss_on_the_device_is_read_late(device):
    device.clock.loss(on_cuda(0.25))
    device.stream.work(5)
    row = device.end_row()
    assert math.isnan(losses_of(device)[row])
    device.clock.finish()
    assert losses_of(device)[row] == 0.25


def test_losses_of_several_rows_travel_together(device, monkeypatch):
    monkeypatch.setattr(device_module, "_UNSENT_NS", math.inf)
    for number in range(device_module._UNSENT_ROWS):
        device.clock.loss(on_cuda(float(number)))
        device.clock.loss(on_cuda(float(number + 2)))
        device.end_row()
    device.stream.catch_up()
    device.clock.poll()
    rows = device_module._UNSENT_ROWS
    assert losses_of(device)[:rows].tolist() == [number + 1 for number in range(rows)]
    assert device.stream.buffers == 1


def test_a_loss_written_to_after_backward_is_left_out(device):
    changed, kept = on_cuda(0.25), on_cuda(0.5)
    device.clock.loss(changed)
    first = device.end_row()
    device.clock.loss(kept)
    second = device.end_row()
    changed.detach()._version = 1
    device.clock.finish()
    assert math.isnan(losses_of(device)[first])
    assert losses_of(device)[second] == 0.5


def test_a_loss_on_another_device_than_the_one_timed_is_left_alone(device):
    device.clock.loss(on_cuda(0.25, index=1))
    row = device.end_row()
    device.clock.finish()
    assert math.isnan(losses_of(device)[row])


def test_pinned_memory_is_used_again(device, monkeypatch):
    monkeypatch.setattr(device_module, "_UNSENT_ROWS", 1)
    for number in range(40):
        device.clock.loss(on_cuda(float(number)))
        row = device.end_row()
        device.stream.catch_up()
        device.clock.poll()
        assert losses_of(device)[row] == number
    assert device.stream.buffers <= 2


def test_a_value_is_handed_over_once_the_device_has_passed_it(device):
    received = []
    device.stream.work(5)
    device.clock.late(on_cuda(65536.0), received.append)
    device.clock.poll()
    assert received == []
    device.stream.catch_up()
    device.clock.poll()
    assert received == [65536.0]


def test_rows_are_timed_no_more_often_than_the_budget_allows(device, monkeypatch):
    clock = SimpleNamespace(now=0)
    monkeypatch.setattr(device_module, "_BUDGET", 0.01)
    monkeypatch.setattr(device_module, "monotonic_ns", lambda: clock.now)
    event_record = Event.record

    def record(self):
        clock.now += 10_000
        event_record(self)

    monkeypatch.setattr(Event, "record", record)
    for _ in range(400):
        clock.now += 1_000_000
        device.step()
        device.stream.catch_up()
    device.clock.finish()
    timed = sum(device.timed(row) for row in range(400))
    assert timed + 2 >= device_module._ALL_OF_FIRST
    assert 400 / 8 < timed < 400 / 4  # 50 µs for a row of 1.05 ms: one in six or so


def test_nothing_is_asked_of_a_device_that_the_program_profiles(device):
    device.step()
    device.step()
    made, device.clock.watched = device.stream.made, lambda: True
    asked = []
    device.stream.queued_ms += 1
    before = [event.at for event in device.clock._pool]
    for _ in range(3):
        device.clock.loss(on_cuda(0.5))
        profiled = device.step()
        asked.append(device.stream.made)
    assert asked == [made] * 3
    assert [event.at for event in device.clock._pool[: len(before)]] == before
    device.clock.watched = lambda: False
    after = [device.step() for _ in range(3)]
    device.clock.finish()
    assert losses_of(device)[profiled] == 0.5
    assert [device.timed(row) for row in (1, profiled, *after)] == [True, False, False, True, True]


def test_losses_that_wait_for_a_profiler_to_end_are_bounded(device):
    device.clock.watched = lambda: True
    rows = 2 * device_module._UNSENT_ROWS
    for number in range(rows):
        device.clock.loss(on_cuda(float(number)))
        device.end_row()
    device.clock.watched = lambda: False
    device.clock.finish()
    known = losses_of(device)[: rows + 1].tolist()
    assert math.isnan(known[0])
    assert known[rows - 1] == rows - 1


class AcceleratorError(RuntimeError):
    """As torch raises it, by name."""


def broken(self):
    raise AcceleratorError("CUDA error: device-side assert triggered")


@pytest.mark.parametrize("at", ["mark", "end_row", "poll", "finish"])
def test_a_device_that_has_failed_ends_no_recording(tmp_path, device, monkeypatch, at):
    from stepscope.probe.core import Core
    from stepscope.record.probe_options import ProbeOptions

    (tmp_path / "run").mkdir()
    core = Core(ProbeOptions(str(tmp_path / "run"), 0))
    core.device, device.clock._log = device.clock, core.log
    core.end_row(RowKind.STEP)
    core.end_row(RowKind.STEP)
    monkeypatch.setattr(Event, {"poll": "query", "finish": "synchronize"}.get(at, "record"), broken)
    if at == "mark":
        device.clock.mark(FORWARD)
    elif at == "finish":
        device.clock.finish()
    else:
        core.end_row(RowKind.STEP)
    assert not core.log.off
    assert device.clock.failed
    core.end_row(RowKind.STEP)
    device.clock.finish()
    assert not core.log.off


def test_other_faults_still_end_the_recording(tmp_path, device, monkeypatch):
    from stepscope.probe.core import Core
    from stepscope.record.probe_options import ProbeOptions

    (tmp_path / "run").mkdir()
    core = Core(ProbeOptions(str(tmp_path / "run"), 0))
    core.device, device.clock._log = device.clock, core.log

    def record(self):
        raise RuntimeError("ours")

    core.end_row(RowKind.STEP)
    monkeypatch.setattr(Event, "record", record)
    core.end_row(RowKind.STEP)
    assert core.log.off


@pytest.fixture
def real_copies(tmp_path, monkeypatch):
    """A clock that copies with torch itself, on the host."""
    empty = torch.empty
    device = Device(tmp_path)
    monkeypatch.setattr(device_module, "Event", lambda enable_timing: Event(device.stream))
    monkeypatch.setattr(device_module, "current_device", lambda: 0)
    monkeypatch.setattr(
        DeviceClock, "_pinned", staticmethod(lambda dtype: empty(256, dtype=dtype, device="cpu"))
    )
    device.clock.activate()
    return device


def copied(device, value):
    received = []
    device.clock._copy([value], [(-1, 1)], received.append)
    device.stream.catch_up()
    device.clock.poll()
    return received


def test_modes_of_the_program_see_nothing_of_losses_being_copied(real_copies):
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    value = torch.tensor(0.5)
    with Functions(), Dispatched():
        assert copied(real_copies, value) == [0.5]
    assert seen == []


def test_a_default_device_of_the_program_is_not_where_losses_are_copied(real_copies):
    value = torch.tensor(0.5)
    with torch.device("meta"):
        assert copied(real_copies, value) == [0.5]


def test_memory_pinned_in_inference_mode_serves_outside_it_too(real_copies):
    value = torch.tensor(0.5)
    with torch.inference_mode():
        assert copied(real_copies, value) == [0.5]
    assert copied(real_copies, value) == [0.5]


def test_a_legacy_profiler_records_nothing_of_losses_being_copied(real_copies):
    from torch.autograd import profiler_legacy

    value = torch.tensor(0.5)
    with profiler_legacy.profile() as own:
        assert copied(real_copies, value) == [0.5]
    assert [event.name for event in own.function_events] == []


def test_losses_of_unclocked_rows_are_read_late(device):
    rows = [device.end_row() for _ in range(3)]
    kept = [(on_cuda(float(row)).detach(), 0) for row in rows]
    changed = on_cuda(7.0)
    device.clock.take([(rows[0], kept[0]), (rows[1], kept[1]), (rows[1], kept[2])])
    device.clock.take([(rows[2], (changed.detach(), 5))])
    device.clock.finish()
    assert losses_of(device)[rows[0]] == 0.0
    assert losses_of(device)[rows[1]] == 1.5
    assert math.isnan(losses_of(device)[rows[2]]), "it was written to"


def test_while_paused_no_row_is_timed_and_events_are_used_again(device):
    for _ in range(4):
        device.step()
    device.clock.pause()
    unclocked = [device.step() for _ in range(50)]
    made = device.stream.made
    device.stream.catch_up()
    device.clock.poll()
    assert not any(device.timed(row) for row in unclocked)
    for _ in range(20):
        device.clock.resume(at_once=True)
        assert device.timed_soon(device.step())
        device.clock.pause()
    assert device.stream.made <= made + 2


def test_every_row_of_a_block_is_timed_whatever_it_costs(device, monkeypatch):
    monkeypatch.setattr(device_module, "_BUDGET", 1e-12)
    for _ in range(40):
        device.step()
    device.clock.pause()
    device.step()
    device.clock.resume(at_once=True)
    block = [device.step() for _ in range(10)]
    device.stream.catch_up()
    device.clock.poll()
    assert all(device.timed(row) for row in block)


def test_clocks_that_go_on_within_a_row_time_the_next_one(device):
    device.step()
    device.clock.pause()
    device.step()
    device.clock.resume(at_once=False)
    under_way, following = device.step(), device.step()
    device.stream.catch_up()
    device.clock.poll()
    assert not device.timed(under_way)
    assert device.timed(following)
