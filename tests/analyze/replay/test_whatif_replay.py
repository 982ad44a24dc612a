"""The replay of small windows whose step can be worked out by hand."""

import pytest
from whatif_tasks import FETCH, host, launch, make, wait

from stepscope.analyze.replay import changes
from stepscope.analyze.replay.simulator import host_times, replay_tasks, run_tiles
from stepscope.analyze.replay.tasks import (
    BETWEEN_NS,
    FORK_MS,
    FORK_MS_PER_GB,
    GRAPH_BETWEEN_NS,
    HAND_OVER_MS_PER_MB,
    LATENCY_NS,
    PINNING_MS_PER_MB,
    RECYCLED_SHARE,
    WORKER_LIFE_MS,
    WORKER_LIFE_MS_PER_GB,
    WORKER_MS_PER_MB,
    LoaderQueue,
)

_PAUSE, _GRAPH_PAUSE, _LATENCY = BETWEEN_NS / 1e3, GRAPH_BETWEEN_NS / 1e3, LATENCY_NS / 1e3


def step_us(*items, **about):
    return replay_tasks(make(*items, **about)).step_ms * 1e3


def test_without_a_device_the_step_is_the_host_chain_gaps_included():
    assert step_us(host(300), host(40), host(60)) == pytest.approx(400)


def test_a_host_that_is_slower_than_the_device_sets_the_pace():
    found = replay_tasks(make(host(500), launch(200), host(500), launch(100)))
    assert found.step_ms == pytest.approx(1.0)
    assert found.limited_by == "host"
    assert found.device_ms == pytest.approx(0.3 + 2 * _PAUSE / 1e3)


def test_a_host_that_runs_ahead_does_not_make_the_step_shorter_than_the_device():
    found = replay_tasks(make(host(100), launch(400), host(100), launch(500)))
    assert found.step_ms * 1e3 == pytest.approx(900 + 2 * _PAUSE)
    assert found.limited_by == "device"
    assert found.host_ms == pytest.approx(0.2)


def test_waiting_for_the_device_makes_host_and_device_take_turns():
    found = replay_tasks(make(host(300), launch(400), wait(), host(200)))
    assert found.step_ms * 1e3 == pytest.approx(300 + _LATENCY + 400 + 200)
    assert found.limited_by == "turns"


def test_the_last_work_hides_under_the_host_that_follows_its_launch():
    assert step_us(host(300), launch(400), host(200), wait()) == pytest.approx(300 + _LATENCY + 400)


def test_a_wait_for_one_copy_does_not_wait_for_what_was_launched_after_it():
    early = step_us(host(10), launch(50), host(10), launch(900, 1), wait(work=0), host(400))
    whole = step_us(host(10), launch(50), host(10), launch(900, 1), wait(), host(400))
    assert early == pytest.approx(900 + _PAUSE)  # the second stream sets the pace
    assert whole == pytest.approx(10 + 10 + _LATENCY + 900 + 400)


def test_a_wait_for_one_stream_leaves_the_other_alone():
    items = (host(10), launch(50), host(10), launch(900, 1))
    assert step_us(*items, wait(stream=0), host(950)) == pytest.approx(970 + _LATENCY + 40, abs=50)
    assert step_us(*items, wait(stream=1), host(950)) > 1800


def test_work_waits_for_another_stream_where_it_was_told_to():
    free = step_us(host(10), launch(300, 1), host(10), launch(300), wait(), host(5))
    held = step_us(host(10), launch(300, 1), host(10), launch(300, after=0), wait(), host(5))
    assert free == pytest.approx(20 + _LATENCY + 300 + 5)
    assert held == pytest.approx(10 + _LATENCY + 300 + 300 + 5)


def test_kernels_that_overlap_on_a_stream_are_not_put_in_a_row():
    apart = step_us(host(10), launch(300), host(10), launch(300), wait())
    beside = step_us(host(10), launch(300), host(10), launch(300, overlaps_us=250), wait())
    whole = step_us(host(10), launch(300), host(10), launch(300, overlaps_us=900), wait())
    assert apart == pytest.approx(10 + _LATENCY + 600 + _PAUSE)
    assert beside == pytest.approx(10 + _LATENCY + 350)
    assert whole == pytest.approx(20 + _LATENCY + 300)


def test_a_graph_is_one_launch_for_all_its_work():
    kernels = [launch(10, graph=True) for _ in range(50)]
    assert step_us(host(20), *kernels, wait()) == pytest.approx(
        20 + _LATENCY + 50 * 10 + 49 * _GRAPH_PAUSE
    )


@pytest.mark.parametrize("queue", [2, 1024])
def test_the_host_runs_ahead_only_as_far_as_the_queue_reaches(queue):
    tasks = make(*[item for _ in range(4) for item in (host(1), launch(100))], queue=queue)
    host_ends, device_ends = run_tiles(tasks, host_times(tasks), 20)
    ahead = device_ends[-1] - host_ends[-1]
    if queue == 2:
        assert ahead / 1e3 == pytest.approx(300, abs=10)  # two in the queue, one at work
    else:
        assert ahead / 1e3 > 7000
    assert replay_tasks(tasks).step_ms * 1e3 == pytest.approx(400 + 4 * _PAUSE)


def test_a_full_queue_holds_up_the_host_where_it_has_something_else_to_do():
    """The second stream's work comes late, as its launch stands behind the first one's."""
    items = [*[item for _ in range(8) for item in (host(1), launch(100))], launch(600, 1), wait()]
    assert step_us(*items, queue=1024) == pytest.approx(1 + _LATENCY + 800 + 7 * _PAUSE)
    assert step_us(*items, queue=2) == pytest.approx(500 + 600, abs=20)


def test_several_steps_in_the_window_are_averaged():
    assert step_us(host(100), launch(20), host(50), steps=5) == pytest.approx(150)


def test_what_a_window_leaves_on_the_device_leads_into_the_next_tile():
    """Two steps of which only one waits: the other's work is waited for all the same."""
    one = step_us(host(100), launch(500), host(10), host(100), launch(500), wait(), steps=1)
    assert one == pytest.approx(100 + _LATENCY + 1000 + _PAUSE)


def test_a_batch_made_by_the_host_is_host_time():
    loader = LoaderQueue(batch_ms=2.0, workers=0, cores=8)
    found = replay_tasks(make(host(0, "data_wait"), FETCH, host(1000), loader=loader))
    assert found.step_ms == pytest.approx(3.0)
    assert found.limited_by == "host"


def test_workers_hide_batches_behind_compute_or_set_the_pace():
    def step(workers, batch_ms=8.0):
        loader = LoaderQueue(batch_ms, workers, cores=16, hand_over_ms=0.2, measured=0)
        return replay_tasks(make(host(0, "data_wait"), FETCH, host(1000), loader=loader))

    assert step(0).step_ms == pytest.approx(9.0)
    assert step(4).step_ms == pytest.approx(2.0)
    assert step(4).limited_by == "loader"
    assert step(12).step_ms == pytest.approx(1.2)
    assert step(12).limited_by == "host"


def test_more_workers_than_cores_make_no_more_batches():
    def step(workers):
        loader = LoaderQueue(8.0, workers, cores=4, hand_over_ms=0.0, measured=1)
        return replay_tasks(make(host(0, "data_wait"), FETCH, host(10), loader=loader)).step_ms

    assert step(4) == pytest.approx(step(16))


def test_workers_that_wait_need_no_core_of_their_own():
    def step(workers, processor):
        loader = LoaderQueue(
            8.0, workers, cores=2, hand_over_ms=0.0, processor=processor, measured=0
        )
        return replay_tasks(make(host(0, "data_wait"), FETCH, host(10), loader=loader)).step_ms

    assert 4.0 <= step(8, 1.0) < 4.6
    assert step(8, 0.05) == pytest.approx(1.0)
    assert 0.2 <= step(800, 0.05) < 0.23


def test_batches_of_first_workers_have_to_be_carried_over():
    def step(workers, measured, batch_mb):
        loader = LoaderQueue(
            8.0, workers, cores=4, hand_over_ms=0.2, batch_mb=batch_mb, measured=measured
        )
        return replay_tasks(make(host(0, "data_wait"), FETCH, host(1000), loader=loader)).step_ms

    assert step(1, 0, 0.0) == pytest.approx(8.0)
    assert step(1, 0, 10.0) == pytest.approx(8.0 + 10 * WORKER_MS_PER_MB)
    assert step(16, 0, 10.0) >= 1.2 + 10 * HAND_OVER_MS_PER_MB
    assert step(2, 1, 10.0) == pytest.approx(4.0), "what was measured with workers has it in it"
    assert step(0, 0, 10.0) == pytest.approx(9.0)


def test_memory_that_was_used_before_costs_less_to_hand_over():
    def step(workers, measured, recycled=True):
        loader = LoaderQueue(
            20.0, workers, cores=4, hand_over_ms=4.0, batch_mb=10.0, measured=measured
        )
        made = make(host(0, "data_wait"), FETCH, host(9000), loader=loader)
        return replay_tasks(changes.recycle_batch_memory()(made) if recycled else made).step_ms

    assert step(1, 0) == pytest.approx(20.0 + RECYCLED_SHARE * 10 * WORKER_MS_PER_MB)
    assert step(1, 1) == pytest.approx(20.0 - (1 - RECYCLED_SHARE) * 10 * WORKER_MS_PER_MB)
    gained = step(4, 4, recycled=False) - step(4, 4)
    assert gained == pytest.approx((1 - RECYCLED_SHARE) * 10 * HAND_OVER_MS_PER_MB)
    assert step(0, 0) == step(0, 0, recycled=False), "without workers nothing is handed over"


def test_a_thread_that_pins_batches_takes_them_over_beside_the_step():
    def step(*made_so, host_us=9000):
        loader = LoaderQueue(20.0, 16, cores=64, hand_over_ms=0.3, batch_mb=20.0, measured=0)
        tasks = make(host(0, "data_wait"), FETCH, host(host_us), loader=loader)
        for change in made_so:
            tasks = change(tasks)
        return replay_tasks(tasks).step_ms

    carried = 20 * HAND_OVER_MS_PER_MB
    assert step() == pytest.approx(9.3 + carried)
    assert step(changes.pin_batches()) == pytest.approx(9.3)
    alone = step(changes.pin_batches(), host_us=100)
    assert alone == pytest.approx(carried + 20 * PINNING_MS_PER_MB), "one thread does it all"
    assert step(changes.pin_batches(), changes.recycle_batch_memory(), host_us=100) < 0.5 * alone


def test_workers_take_processor_time_from_a_host_that_computes():
    loader = LoaderQueue(2.0, 2, cores=2, host_cores=2, measured=0)
    found = replay_tasks(make(host(0, "data_wait"), FETCH, host(3000), loader=loader))
    assert found.step_ms > (2 * 3.0 + 2.0) / 2 - 1e-9


def test_as_many_workers_as_measured_cost_what_was_measured():
    loader = LoaderQueue(
        64.0, 16, cores=2, host_cores=2, hand_over_ms=0.1, late_ms=0.4, measured=16
    )
    found = replay_tasks(make(host(0, "data_wait"), FETCH, host(1000), loader=loader))
    assert found.step_ms == pytest.approx(4.0 + 0.4)


def _with_workers(workers, epoch, measured=0, **known):
    loader = LoaderQueue(
        40.0,
        workers,
        cores=2,
        processor=0.05,
        memory_gb=0.5,
        epoch=epoch,
        measured=measured,
        **known,
    )
    made = make(host(0, "data_wait"), FETCH, host(4000), loader=loader)
    return replay_tasks(made).step_ms


def test_workers_that_every_epoch_starts_anew_cost_its_steps_something():
    forks, lives = (
        8 * (FORK_MS + FORK_MS_PER_GB / 2),
        8 * (WORKER_LIFE_MS + WORKER_LIFE_MS_PER_GB / 2),
    )
    first = 8 * 4.3  # the steps of a round: shorter than making a batch
    begun = (forks + lives) / 2 + first
    assert _with_workers(8, 50) == pytest.approx(5.0 + begun / 50)
    assert _with_workers(8, 5000) == pytest.approx(5.0 + begun / 5000)
    assert _with_workers(8, 0) == pytest.approx(5.0), "how long epochs are is not known"


def test_workers_that_were_measured_or_are_kept_are_not_started_again():
    assert _with_workers(8, 50, measured=8) == pytest.approx(_with_workers(8, 0, measured=8))
    assert _with_workers(8, 50, kept=True) == pytest.approx(_with_workers(8, 0))
    more = _with_workers(8, 50, measured=4) - _with_workers(8, 0, measured=4)
    assert 0 < more < _with_workers(8, 50) - _with_workers(8, 0)


def test_workers_that_import_the_program_again_start_slower():
    assert _with_workers(4, 50, import_ms=3000.0) > 2 * _with_workers(4, 50)
