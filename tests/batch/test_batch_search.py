"""Which batch sizes are tried and what is said of them, in a simulated world."""

import msgspec
import pytest
from batch_world import GIB, World

from stepscope.batch.document import search_result
from stepscope.batch.program import BatchRequest, search_program
from stepscope.measure.trial import Trial
from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.trial import TrialReason, TrialStatus


def find(world, **wanted):
    searched = search_program(
        BatchRequest(**wanted), world.run, world.look, lambda batch, got: None
    )
    return answer(searched, searched.program.batch)


def answer(searched, own):
    return msgspec.to_builtins(search_result(searched.search, searched.bounds, own))


def few_steady(trial, **changed):
    failed = {"status": TrialStatus.FAILED, "reason": TrialReason.TOO_FEW_STEADY}
    return msgspec.structs.replace(trial, **failed, **changed)


def status(found):
    return {row["batch"]: row["status"] for row in found["curve"]}


def test_the_knee_is_the_smallest_size_near_the_best_throughput():
    world = World()
    found = find(world)
    assert found["knee"]["batch"] == 256
    assert found["knee"]["of_best"] >= 0.95
    rates = {row["batch"]: row["of_best"] for row in found["curve"]}
    assert rates[128] < 0.95
    assert len(world.asks) <= 9


def test_the_published_curve_of_resnet50_has_its_knee_at_256():
    class Published(World):
        def rate(self, batch):
            known = {64: 2229, 128: 2351, 256: 2449, 512: 2522, 1024: 2568}
            return known.get(batch, 2570.0)

    found = find(Published())
    assert found["knee"]["batch"] in (128, 256)
    assert not found["knee"]["growing"]


def test_the_largest_that_fits_is_found_by_what_memory_says_without_running_out():
    world = World()
    found = find(world)
    held = world.bytes(found["largest"]["batch"]) / world.memory
    assert 0.93 <= held <= 0.97
    assert found["largest"]["bounded"]
    assert "out_of_memory" not in status(found).values()
    assert found["largest"]["batch"] % 8 == 0


def test_out_of_memory_is_survived_and_closed_in_on():
    class Surprising(World):
        def run(self, ask):
            trial = super().run(ask)
            if self._batch(ask) > 700:
                self.asks[-1:] = [ask]
                return Trial(ask, trial.number, TrialStatus.OUT_OF_MEMORY)
            return trial

    world = Surprising()
    found = find(world)
    assert found["stopped"]["kind"] == "memory"
    assert found["largest"]["too_large"] - found["largest"]["batch"] <= 700 / 16 + 8
    assert 640 <= found["largest"]["batch"] <= 700


def test_sizes_without_headroom_are_not_the_knee():
    world = World(own=8, half=200.0, memory=30 * GIB, samples=None)
    found = find(world, headroom=0.5)
    assert world.bytes(found["knee"]["batch"]) <= 0.5 * world.memory
    assert found["largest"]["batch"] > found["knee"]["batch"]


def test_the_knee_and_what_it_is_compared_with_are_measured_twice():
    world = World()
    found = find(world)
    assert found["knee"]["processes"] == 2
    assert found["knee"]["low"] < found["knee"]["samples_per_s"] < found["knee"]["high"]
    assert world.tried.count(64) == world.tried.count(128) == 2
    assert found["knee"]["speedup"]["verdict"] == "faster"
    assert found["knee"]["speedup"]["ratio"] == pytest.approx(2497 / 2244, rel=0.01)


def test_one_slow_process_does_not_end_the_way_up():
    class Hiccup(World):
        def run(self, ask):
            trial = super().run(ask)
            if self.tried.count(128) == 1 and self._batch(ask) == 128:
                slow = tuple(3 * ms for ms in trial.step_ms)
                return msgspec.structs.replace(trial, step_ms=slow)
            return trial

    found = find(Hiccup())
    assert max(status(found)) > 512
    assert found["stopped"]["kind"] == "memory"


def test_throughput_that_falls_ends_the_way_up():
    found = find(World(own=256, falls_from=512))
    assert found["stopped"] == {"kind": "falls", "batch": 512, "than": 256}
    assert found["knee"]["batch"] == 256


def test_throughput_that_stays_ends_the_way_up_after_two_doublings():
    world = World(device="cpu", own=64, half=0.5, memory=1000 * GIB)
    found = find(world)
    assert found["stopped"]["kind"] == "flat"
    assert sorted(set(world.tried)) == [64, 128, 256]
    assert found["knee"]["batch"] == 64


def test_on_the_cpu_memory_is_never_filled():
    world = World(device="cpu", own=32, half=500.0, memory=20 * GIB)
    found = find(world)
    assert found["stopped"]["kind"] == "room"
    assert max(world.bytes(batch) for batch in world.tried) <= 0.9 * world.memory
    assert not found["largest"]["bounded"]


def test_a_first_doubling_that_might_not_fit_is_approached_in_a_smaller_step():
    world = World(device="cpu", own=32, memory=10 * GIB, fixed=6 * GIB, each=0.01 * GIB)
    find(world)
    assert world.tried[:2] == [32, 40]


def test_no_batch_is_larger_than_an_epoch():
    found = find(World(samples=1000))
    assert found["stopped"]["kind"] == "epoch"
    assert found["stopped"]["than"] == 1000
    assert max(status(found)) == 512


def test_an_epoch_of_unknown_length_is_told_by_the_fix():
    class Unknown(World):
        def look(self, trial):
            from dataclasses import replace

            return replace(super().look(trial), samples=None)

    found = find(Unknown(samples=200))
    assert found["stopped"]["kind"] == "epoch"
    assert found["stopped"]["detail"].endswith("has only 200 samples")
    assert found["knee"]["batch"] == 128


def test_max_is_tried_and_is_the_end():
    found = find(World(), largest=200)
    assert [row["batch"] for row in found["curve"]] == [64, 128, 200]
    assert found["stopped"]["kind"] == "limit"


def test_min_below_the_program_s_own_tries_smaller_ones_while_they_are_near_the_best():
    world = World(own=1024)
    found = find(world, smallest=32)
    assert found["knee"]["batch"] == 256
    assert min(world.tried) == 128


def test_min_above_the_program_s_own_starts_there():
    world = World(own=16)
    find(world, smallest=128)
    assert sorted(set(world.tried))[:2] == [16, 128]


def test_a_program_that_runs_out_of_memory_as_it_is_gets_a_smaller_batch():
    found = find(World(own=2048))
    assert status(found)[2048] == "out_of_memory"
    assert found["knee"]["batch"] == 256
    assert found["knee"]["speedup"] is None


def test_a_size_the_program_cannot_take_ends_the_way_up_with_its_reason():
    found = find(World(breaks_at=256))
    stop = found["stopped"]
    assert (stop["kind"], stop["batch"], stop["status"]) == ("failure", 256, "broke")
    assert stop["detail"] == "the program counts on batches of 64"
    assert found["knee"]["batch"] == 128


def test_the_budget_counts_the_seconds_of_trials():
    world = World()
    found = find(world, budget_s=30.0)
    assert found["seconds"] <= 30.0
    assert found["stopped"]["kind"] == "budget"
    assert [one["kind"] for one in found["notes"]] == ["measured_once"]


def test_a_largest_batch_that_would_take_long_is_said_but_not_tried():
    world = World(half=0.5, each=0.0005 * GIB, samples=None)
    found = find(world)
    assert max(world.tried) == 256
    assert found["notes"][0]["kind"] == "fits_slow"


def test_an_interrupted_search_keeps_what_it_has():
    world = World()

    def run(ask):
        if len(world.asks) == 3:
            raise KeyboardInterrupt
        return world.run(ask)

    searched = search_program(BatchRequest(), run, world.look, lambda batch, got: None)
    assert searched.interrupted
    found = answer(searched, 64)
    assert [row["batch"] for row in found["curve"]] == [64, 128, 256]
    assert found["stopped"]["kind"] == "interrupted"


def test_the_same_records_lead_to_the_same_asks():
    one, other = World(), World()
    assert find(one) == find(other)
    assert one.asks == other.asks


def test_slow_steps_make_short_trials_and_fast_ones_long_trials():
    slow, fast = World(top=100.0), World(top=100_000.0)
    find(slow, largest=128)
    find(fast, largest=128)
    assert slow.asks[1].steps == 16
    assert fast.asks[1].steps > 100


def test_steps_that_workers_had_ready_are_asked_for_again():
    class Buffered(World):
        def run(self, ask):
            trial = super().run(ask)
            if ask.steps == 40:
                return few_steady(trial, step_ms=trial.step_ms[:3])
            return trial

    world = Buffered()
    assert find(world)["knee"]["batch"] == 256
    assert world.asks[1].steps > 100


def test_a_program_that_ends_by_itself_after_few_steps_is_told_so():
    class Short(World):
        def run(self, ask):
            trial = super().run(ask)
            if self._batch(ask) > 64:
                return few_steady(trial, step_ms=(1.0,) * 3, steps=5)
            return trial

    found = find(Short())
    assert found["stopped"]["kind"] == "short"
    assert found["stopped"]["steps"] == 5


def test_a_batch_size_that_cannot_be_changed_is_an_error():
    with pytest.raises(UsageError, match="cannot be changed: no DataLoader forms batches here"):
        find(World(applies=False))


def test_a_fix_that_does_not_apply_is_an_error():
    with pytest.raises(UsageError, match="--fix channels_last does not apply: no convolution"):
        find(World(fixes={"channels_last": "no convolution"}), fixes=("channels_last",))


def test_fixes_are_applied_at_every_size():
    world = World()
    find(world, fixes=("amp=bf16",))
    assert all(ask.fixes[-1] == "amp=bf16" for ask in world.asks)


def test_max_below_the_program_s_own_is_an_error():
    with pytest.raises(UsageError, match="--max 32 is below the program's own batch of 64"):
        find(World(), largest=32)


def test_min_beyond_an_epoch_is_an_error():
    with pytest.raises(UsageError, match="an epoch has only 100 samples"):
        find(World(samples=100), smallest=128)


def test_a_program_that_fails_as_it_is_is_told_so():
    class Broken(World):
        def run(self, ask):
            failed = TrialStatus.FAILED, TrialReason.PROGRAM_FAILED
            return Trial(ask, 1, *failed, "ValueError: no data")

    with pytest.raises(StepscopeError, match="baseline failed: ValueError: no data") as caught:
        find(Broken())
    assert caught.value.exit_code == 1
