"""Which optimizer step ends a step, in every shape of training loop met so far."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.probe.step_rule import StepRule, step_ends

PROPERTY = settings(max_examples=50)
EVENTS = st.lists(st.integers(0, 3), max_size=40)
IN_BACKWARD = 999


def online(events):
    """The count after each event, and whether the event was said to make one more step."""
    rule = StepRule()
    said = [(rule.add(who), rule.count) for who in events]
    return [count for _, count in said], [more for more, _ in said]


SHAPES = {
    "one optimizer": ([0] * 7, 7),
    "the generator of a GAN rides along": ([0, 1] * 6, 6),
    "five critic steps to one of the generator": ([0, 0, 0, 0, 0, 1] * 4, 20),
    "two models in turn": ([0] * 10 + [1] * 17, 27),
    "phases that alternate": ([0] * 5 + [1] * 5 + [0] * 5 + [1] * 5, 20),
    "a model split over three optimizers": ([0, 1, 2] * 5, 5),
    "optimizers inside backward": ([IN_BACKWARD] * 6, 6),
    "an optimizer inside backward and one outside": ([IN_BACKWARD, 0] * 6, 6),
    "three models one after another": ([0] * 3 + [1] * 4 + [2] * 5, 12),
    "a GAN, then a classifier": ([0, 1] * 6 + [2] * 5, 11),
    "an optimizer that steps every third time": ([0, 0, 0, 1] * 4, 12),
    "nothing stepped": ([], 0),
}


@pytest.mark.parametrize(("events", "steps"), SHAPES.values(), ids=SHAPES.keys())
def test_counts_the_steps_of(events, steps):
    assert sum(step_ends(events)) == steps
    counts, _ = online(events)
    assert (counts[-1] if counts else 0) == steps


def test_a_gans_step_ends_once_both_halves_have_stepped():
    assert step_ends([0, 1] * 3) == [False, True] * 3


def test_a_gan_cut_short_inside_an_iteration_counts_what_its_first_half_did():
    assert sum(step_ends([0, 1, 0, 1, 0])) == 3


def test_numbers_of_optimizers_do_not_matter():
    assert step_ends([7, 3, 7, 3]) == step_ends([0, 1, 0, 1])


def test_an_optimizer_that_ever_steps_twice_in_a_row_counts_beside_the_anchor():
    assert step_ends([0, 0, 1, 0, 0, 1, 1]) == [True] * 7
    assert step_ends([0, 0, 1, 1, 0, 0, 1, 0]) == [True] * 8


def test_an_optimizer_that_never_steps_twice_in_a_row_beside_a_more_frequent_one_never_counts():
    ends = step_ends([0, 0, 1, 0, 0, 1, 0])
    assert ends == [True, True, False, True, True, False, True]


@PROPERTY
@given(EVENTS)
def test_online_count_is_what_a_recount_of_the_same_events_gives(events):
    counts, _ = online(events)
    for length, count in enumerate(counts, start=1):
        assert count == sum(step_ends(events[:length]))


@PROPERTY
@given(EVENTS)
def test_says_one_more_exactly_when_the_count_grew(events):
    counts, said = online(events)
    before = [0, *counts[:-1]] if counts else []
    assert said == [now > then for then, now in zip(before, counts, strict=True)]


@PROPERTY
@given(st.integers(0, 200), st.integers(0, 1000))
def test_a_lone_optimizer_counts_every_step(length, who):
    counts, said = online([who] * length)
    assert counts == list(range(1, length + 1))
    assert all(said)


@PROPERTY
@given(EVENTS)
def test_steps_lie_between_the_busiest_optimizer_and_all_of_them(events):
    steps = sum(step_ends(events))
    busiest = max((events.count(who) for who in set(events)), default=0)
    assert busiest <= steps <= len(events)


@PROPERTY
@given(EVENTS, EVENTS)
def test_loops_one_after_another_add_up(first, second):
    apart = [who + 10 for who in second]
    assert sum(step_ends(first + apart)) == sum(step_ends(first)) + sum(step_ends(second))


@PROPERTY
@given(EVENTS, st.permutations(range(4)))
def test_renaming_optimizers_changes_no_count(events, names):
    assert sum(step_ends([names[who] for who in events])) == sum(step_ends(events))
