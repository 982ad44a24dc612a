"""Contests between blocks of steps, by a clock that the tests set."""

import random
from statistics import fmean

import pytest

from stepscope.fixes.contest import Contest, steps_to_settle
from stepscope.stats.paired import FEWEST_PAIRS, Blocks

EIGHT = Blocks(8)


class Program:
    """Steps of a known length, and a clock that tells it: at once, or only up to some time ago."""

    def __init__(self, ratio=1.0, noise=0.0, seed=0, settling=(), lag=0.0, cycle=None):
        self.ratio, self.noise, self.settling = ratio, noise, settling
        self.lag, self.cycle = lag, cycle
        self.draw = random.Random(seed)
        self.now, self.on, self.since, self.steps = 0.0, False, 0, 0
        self.switches = []

    def switch(self, on):
        self.switches.append(on)
        self.since = 0 if on != self.on else self.since
        self.on = on

    def mark(self):
        return self.now

    def elapsed_ms(self, begin, end):
        return end - begin if end <= self.now - self.lag else None

    def step(self):
        usual = 10.0 / (self.ratio if self.on else 1.0)
        late = self.settling[self.since] if self.since < len(self.settling) else 1.0
        self.since += 1
        self.steps += 1
        self.now += usual * late * (1 + self.noise * abs(self.draw.gauss(0, 1)))
        if self.cycle is not None and self.steps % self.cycle == 0:
            self.now += 60.0


def contest_of(program, blocks=EIGHT, seed=0, most_steps=None):
    """The result, and how many steps it took to have it."""
    contest = Contest(program.switch, program, blocks, random.Random(seed), most_steps)
    contest.begin()
    for step in range(1, 5000):
        program.step()
        result = contest.step_ended()
        if result is not None:
            return result, step
    raise AssertionError("it never ended")


def test_a_planted_gain_of_a_twentieth_is_found_and_stays_on():
    program = Program(ratio=1.05, noise=0.03)
    result, steps = contest_of(program)
    assert result.gains
    assert program.on
    assert result.ratio.low < 1.05 < result.ratio.high
    assert result.steps == steps
    assert result.before_ms / result.after_ms == pytest.approx(1.05, abs=0.02)


def test_what_is_slower_goes_off_after_four_pairs():
    program = Program(ratio=0.8, noise=0.03)
    result, steps = contest_of(program)
    assert not result.gains
    assert not program.on
    assert steps == 4 * 2 * 8


def test_what_changes_nothing_is_hardly_accepted_in_200_contests():
    results = [contest_of(Program(noise=0.1, seed=seed), seed=seed)[0] for seed in range(200)]
    assert sum(one.gains for one in results) <= 2
    assert abs(fmean(one.ratio.ratio for one in results) - 1) < 0.01


def test_an_undecided_contest_ends_without_the_candidate():
    program = Program(ratio=1.02, noise=0.5)
    result, steps = contest_of(program, most_steps=5 * 16)
    assert not result.gains
    assert not program.on
    assert steps <= 5 * 16


def test_blocks_of_a_pair_come_in_an_order_drawn_by_chance():
    def order(seed):
        program = Program(ratio=1.2, noise=0.01)
        contest_of(program, seed=seed)
        return tuple(program.switches[:-1])

    orders = [order(seed) for seed in range(20)]
    for one in orders:
        assert all(first != second for first, second in zip(one[::2], one[1::2], strict=True))
    assert len(set(orders)) > 10


def test_steps_that_pay_for_the_switch_are_left_out():
    program = Program(ratio=1.2, settling=(5.0, 2.0), noise=0.01)
    result, _ = contest_of(program)
    assert result.gains
    assert result.ratio.ratio == pytest.approx(1.2, abs=0.02)


def test_a_device_that_is_behind_is_not_waited_for():
    program = Program(ratio=1.3, noise=0.02, lag=200.0)
    result, steps = contest_of(program)
    assert result.gains
    assert program.on
    assert steps > FEWEST_PAIRS * 16  # its last blocks had not been timed


@pytest.mark.parametrize(
    ("step_ms", "workers", "blocks"),
    [
        (1.0, 0, Blocks(32, 1)),
        (10.0, 0, Blocks(8, 1)),
        (500.0, 0, Blocks(4, 1)),
        (10.0, 6, Blocks(12, 6)),
        (500.0, 40, Blocks(32, 16)),
    ],
)
def test_blocks_cover_time_to_be_measured_and_the_workers_cycle(step_ms, workers, blocks):
    assert Blocks.of(step_ms, workers) == blocks


def test_batches_that_come_in_cycles_are_no_difference():
    result, _ = contest_of(Program(cycle=6), Blocks(13, 6))
    assert not result.gains


@pytest.mark.parametrize(
    ("blocks", "left_out"),
    [
        ([[1.0] * 8] * 4, 1),
        ([[9.0, 1, 1, 1, 1, 1, 1, 1]] * 4, 1),
        ([[9.0, 1, 1.5, 1, 1, 1, 1, 1]] * 4, 3),
        ([[8.0, 7, 6, 5, 4, 3, 2, 1]] * 4, 4),
    ],
)
def test_steps_are_left_out_until_they_have_settled(blocks, left_out):
    assert steps_to_settle(blocks) == left_out
