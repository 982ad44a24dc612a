"""What each change does to the step, and that none touches what it was given."""

from dataclasses import fields

import numpy as np
import pytest
from recordings import recorded
from whatif_tasks import FETCH, host, launch, make, wait

from stepscope.analyze.replay import changes
from stepscope.analyze.replay.changes import wait_kind_of
from stepscope.analyze.replay.model import build_model
from stepscope.analyze.replay.simulator import replay_tasks
from stepscope.analyze.replay.tasks import (
    LoaderQueue,
    StretchKind,
    WaitKind,
    select_copies,
    select_kernels,
)
from stepscope.analyze.replay.tasks import select_host as host_time
from stepscope.analyze.timeline.steps import find_steps
from stepscope.record.timeline import DeviceKind


def step_us(tasks, *apply):
    for change in apply:
        tasks = change(tasks)
    return replay_tasks(tasks).step_ms * 1e3


def upload(us, **about):
    return launch(us, kind=DeviceKind.COPY, category="copy",
                  name="Memcpy HtoD (Pageable -> Device)", **about)  # fmt: skip


def test_dropping_a_wait_gains_what_the_host_waited():
    tasks = make(host(300), launch(400), wait(WaitKind.ITEM), host(200))
    assert step_us(tasks) == pytest.approx(901, abs=2)
    assert step_us(tasks, changes.drop_waits("item")) == pytest.approx(500)
    assert step_us(tasks, changes.drop_waits("nonzero")) == pytest.approx(901, abs=2)
    assert step_us(tasks, changes.drop_waits()) == pytest.approx(500)


def test_dropping_a_wait_gains_nothing_where_the_next_one_takes_it_over():
    tasks = make(host(100), upload(10), wait(WaitKind.TO_DEVICE), host(300), launch(900),
                 wait(WaitKind.ITEM), host(5))  # fmt: skip
    before, after = step_us(tasks), step_us(tasks, changes.drop_waits(WaitKind.ITEM))
    assert 0.9 < after / before < 1.0
    both = step_us(tasks, changes.drop_waits(WaitKind.ITEM), changes.unblock_copies())
    assert both < after
    assert both == pytest.approx(912, abs=5)  # the device alone


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("item", WaitKind.ITEM),
        ("bool", WaitKind.ITEM),
        ("cpu", WaitKind.TO_HOST),
        ("to('cpu')", WaitKind.TO_HOST),
        ("pageable copy", WaitKind.TO_DEVICE),
        ("masked_select", WaitKind.SHAPE),
        ("Event.synchronize", WaitKind.SYNCHRONIZE),
        ("empty_cache", WaitKind.FREE),
        ("something", None),
    ],
)
def test_words_of_show_are_kinds_of_waits(word, kind):
    assert wait_kind_of(word) is kind


def test_an_unknown_kind_of_wait_drops_none():
    tasks = make(host(300), launch(400), wait(), host(200))
    assert step_us(tasks, changes.drop_waits("something")) == step_us(tasks)


def test_copies_that_do_not_block_run_behind_the_host_and_faster():
    tasks = make(host(50), upload(600), wait(WaitKind.TO_DEVICE, work=0), host(500), launch(100))
    assert step_us(tasks) > 1150
    freed = step_us(tasks, changes.unblock_copies(faster=3))
    assert freed == pytest.approx(550)


def test_copies_on_a_stream_of_their_own_run_beside_compute():
    tasks = make(host(10), upload(600), host(10), launch(700))
    assert step_us(tasks) == pytest.approx(1302, abs=1)
    assert step_us(tasks, changes.overlap_copies()) == pytest.approx(701, abs=1)


def test_host_time_is_scaled_removed_and_dropped_by_name_or_kind():
    tasks = make(
        host(100, name="aten::a"), host(50, did=StretchKind.GAP, name="gap"), host(30, "other")
    )
    assert step_us(tasks, changes.scale_host(host_time(phase="forward"), 0.5)) == pytest.approx(105)
    assert step_us(tasks, changes.remove_host(host_time(StretchKind.GAP), 0.4)) == pytest.approx(
        160
    )
    assert step_us(tasks, changes.drop_host("^aten::a$")) == pytest.approx(80)
    assert step_us(tasks, changes.remove_host(host_time(StretchKind.GAP))) == pytest.approx(130)
    assert step_us(tasks, changes.scale_phase("other", 2)) == pytest.approx(210)


def test_without_launch_cost_the_device_is_left():
    tasks = make(*[i for _ in range(20) for i in (host(30), launch(10))], host(40, "other"))
    assert step_us(tasks) == pytest.approx(640)
    assert step_us(tasks, changes.drop_launch_cost(launch_ns=5e3)) == pytest.approx(212, abs=5)
    assert step_us(tasks, changes.drop_launch_cost("backward", launch_ns=0)) == pytest.approx(640)
    half = step_us(tasks, changes.drop_launch_cost(launch_ns=0, keep=0.5))
    assert half == pytest.approx(340)


def test_no_graph_is_captured_over_a_result_whose_size_is_waited_for():
    sized = wait(WaitKind.SHAPE)
    tasks = make(host(50), launch(10), sized, host(50), launch(10), host(40, "backward"))
    graph = changes.drop_launch_cost(launch_ns=0)
    waited = step_us(tasks)
    assert step_us(tasks, graph) == pytest.approx(waited - 40)
    assert step_us(tasks, changes.drop_waits("nonzero"), graph) < 30


def test_kernels_are_scaled_by_category_and_by_each_their_own_factor():
    tasks = make(host(1), launch(100), host(1), launch(60, category="pointwise"))
    halved = changes.scale_kernels(select_kernels("matmul"), 0.5)
    assert step_us(tasks, halved) == pytest.approx(112, abs=1)
    each = changes.scale_kernels(
        select_kernels(), lambda t: np.where(t.work.category == 1, 0.1, 1.0)
    )
    assert step_us(tasks, each) == pytest.approx(72, abs=1)


def test_communication_is_never_scaled():
    tasks = make(host(1), launch(100, category="communication"))
    assert step_us(tasks, changes.scale_kernels(select_kernels(), 0.1)) == pytest.approx(101, abs=1)


def test_neighbours_merge_into_one_kernel_and_their_operators_go():
    items = [
        *(host(40, call=1), launch(20, category="pointwise", call=1)),
        *(host(40, call=2), launch(30, category="pointwise", call=2)),
        *(host(40, call=3), launch(50, call=3)),
        *(host(40, call=4), launch(25, category="pointwise", call=4)),
    ]
    tasks = make(*items)
    merged = changes.fuse_pointwise("pointwise")(tasks)
    assert merged.work.gone.tolist() == [False, True, False, False]
    assert merged.work.duration[0] == 30_000
    assert step_us(merged) == pytest.approx(120)


def test_what_the_host_waits_between_does_not_merge():
    tasks = make(host(1), launch(20, category="pointwise"), wait(), host(1),
                 launch(20, category="pointwise"))  # fmt: skip
    assert not changes.fuse_pointwise("pointwise")(tasks).work.gone.any()


def test_a_fused_optimizer_is_one_kernel_and_a_few_launches():
    tasks = make(host(100), launch(50),
                 *[i for _ in range(30) for i in (host(20, "optimizer"), launch(4))])  # fmt: skip
    assert step_us(tasks) == pytest.approx(700)
    fused = changes.fuse_optimizer(device_factor=0.25, host_ns=100e3)(tasks)
    assert (~fused.work.gone).sum() == 2
    assert fused.work.duration[1] == pytest.approx(30_000)
    assert step_us(fused) == pytest.approx(200)


def test_a_fused_optimizer_never_costs_more_host_time_than_the_one_it_replaces():
    tasks = make(host(100), launch(50), host(20, "optimizer"), launch(4))
    assert step_us(tasks, changes.fuse_optimizer()) <= step_us(tasks)


def test_changes_of_the_loader():
    loader = LoaderQueue(8.0, 0, cores=16, hand_over_ms=0.1, measured=0)
    tasks = make(host(0, "data_wait"), FETCH, host(1000), loader=loader)
    assert step_us(tasks, changes.set_workers(4)) == pytest.approx(2000)
    assert step_us(tasks, changes.scale_batch_time(0.25)) == pytest.approx(3000)
    assert step_us(tasks, changes.set_workers(4), changes.scale_batch_time(0.25)) == pytest.approx(
        1100
    )
    assert step_us(tasks, changes.scale_phase("data_wait", 0.5)) == pytest.approx(5000)
    assert step_us(tasks, changes.scale_phase("data_wait", 0.0)) == pytest.approx(1000)


@pytest.mark.parametrize("change", [changes.set_workers(4), changes.scale_batch_time(2)])
def test_without_a_loader_its_changes_change_nothing(change):
    tasks = make(host(100))
    assert change(tasks) is tasks


EVERY = [
    changes.drop_waits(), changes.unblock_copies(2), changes.overlap_copies(),
    changes.set_workers(4),
    changes.scale_kernels(select_kernels("matmul"), 0.5), changes.scale_copies("HtoD", 0.5),
    changes.merge_kernels(select_kernels()), changes.fuse_pointwise(),
    changes.remove_host(host_time(StretchKind.GAP)), changes.drop_host("aten::"),
    changes.drop_launch_cost(),
    changes.scale_phase("forward", 0.5), changes.scale_phase("optimizer", 0.0),
    changes.fuse_optimizer(0.5),
]  # fmt: skip


@pytest.fixture(scope="module")
def real():
    timeline = recorded("resnet50_b64_h200")
    return build_model(timeline, find_steps(timeline).steps[1:4])


@pytest.mark.parametrize("change", EVERY, ids=lambda change: change.__qualname__.split(".")[0])
def test_no_change_touches_the_tasks_it_was_given_or_slows_the_step(real, change):
    tables = [real.tasks.host, real.tasks.work, real.tasks.waits]
    before = [{f.name: getattr(t, f.name).copy() for f in fields(t)} for t in tables]
    found = real.replay(change)
    assert found.step_ms <= real.step_ms * 1.001
    assert found == real.replay(change)
    for table, columns in zip(tables, before, strict=True):
        for name, column in columns.items():
            assert np.array_equal(getattr(table, name), column), name


def test_copies_are_told_by_direction(real):
    assert select_copies("HtoD")(real.tasks).sum() == 6  # images and labels of three steps
    assert select_copies("DtoH")(real.tasks).sum() == 3
