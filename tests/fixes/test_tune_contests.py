"""Contests that `tune` asks for, in a trial's process."""

import math
from contextlib import contextmanager, suppress
from time import monotonic_ns

import pytest
import torch
from planted_fixes import MODEL, Planted, Program, observed_program, simulate_time

from stepscope.fixes import in_place
from stepscope.fixes.in_place import TuneContests
from stepscope.probe.core import StopProgram
from stepscope.probe.observer import Observer
from stepscope.record.facts import AutoStop, ContestFact
from stepscope.record.fix import Applied, FixKind, FixState, fix_outcomes
from stepscope.record.probe_options import ContestOptions, ProbeOptions
from stepscope.store.json_lines import read_facts


@pytest.fixture
def clock(monkeypatch):
    return simulate_time(monkeypatch)


@pytest.fixture
def observed(tmp_path, monkeypatch, clock):
    """`observed(*fixes, …)`: a trial that compares them, in this order unless `candidates` says."""

    @contextmanager
    def run(*fixes, candidates=None, allow=FixKind.NUMERIC, seconds=1e3, each_s=1e3, value=None):
        by_name = {one.name: one for one in fixes}
        monkeypatch.setattr(
            in_place,
            "parse_fixes",
            lambda asked: [
                (by_name[name], given or value)
                for name, _, given in (one.partition("=") for one in asked)
            ],
        )
        monkeypatch.setattr(in_place, "in_order", tuple)
        monkeypatch.setattr(in_place, "exclude_each_other", lambda one, other: False)
        asked = candidates or tuple((name,) for name in by_name)
        held = ContestOptions(allow, asked, seconds, each_s)
        options = ProbeOptions(str(tmp_path), monotonic_ns(), window=0, steps=10_000, contests=held)
        assert ProbeOptions.from_json(options.to_json()) == options
        observer = Observer(options)
        TuneContests(observer, held).install()
        with observed_program(observer, clock, fixes, tmp_path) as pair:
            yield pair

    return run


def train(program):
    """Until the contests end it."""
    with suppress(StopProgram):
        program.train(5000)


def held(run):
    return {" + ".join(one.candidate): one.kept for one in run.facts(ContestFact)}


def outcomes(run):
    found = fix_outcomes(read_facts(run.folder / "facts.jsonl").fixes)
    return {one.name: one.state for one in found}


def test_the_program_ends_with_the_last_contest(observed):
    good, bad = Planted("good", 1.3), Planted("bad", 0.8)
    with observed(good, bad) as (program, run):
        train(program)
    assert held(run) == {"good": True, "bad": False}
    assert run.last.stopped is AutoStop.DONE
    assert run.last.for_tune
    assert len(program.losses) < 400


def test_candidates_come_in_the_order_asked_for_each_on_top_of_the_winners(observed):
    one, two = Planted("one", 1.3), Planted("two", 1.3)
    with observed(one, two, candidates=(("two",), ("one",))) as (program, run):
        train(program)
    two_alone, both = run.facts(ContestFact)
    assert [two_alone.candidate, both.candidate] == [["two"], ["one"]]
    assert both.before_ms == pytest.approx(two_alone.after_ms)


def test_losses_are_those_of_a_run_without_contests_where_nothing_rounds(observed, clock):
    good, bad = Planted("good", 1.3), Planted("bad", 0.8)
    with observed(good, bad) as (program, _):
        train(program)
    torch.manual_seed(0)
    bare = Program(clock, ())
    bare.train(len(program.losses))
    assert program.losses == bare.losses


def test_joint_candidates_are_switched_as_one_and_their_parts_not_tried_again(observed):
    one, two = Planted("one", 1.2), Planted("two", 1.2)
    asked = (("one", "two"), ("one",), ("two",))
    with observed(one, two, candidates=asked) as (program, run):
        train(program)
    assert held(run) == {"one + two": True}


def test_the_parts_of_a_joint_candidate_that_lost_are_tried(observed):
    one, two = Planted("one", 1.2), Planted("two", 0.7)
    asked = (("one", "two"), ("one",), ("two",))
    with observed(one, two, candidates=asked) as (program, run):
        train(program)
    assert held(run) == {"one + two": False, "one": True, "two": False}


def test_of_two_values_of_a_fix_only_the_first_is_tried(observed):
    fix = Planted("fix", 1.3)
    with observed(fix, candidates=(("fix=1",), ("fix=2",))) as (program, run):
        train(program)
    assert held(run) == {"fix=1": True}


def test_candidates_are_named_as_they_were_asked_for(observed):
    fix = Planted("fix", 1.3)
    with observed(fix, value="usual") as (program, run):
        train(program)
    assert held(run) == {"fix": True}


def test_what_has_nothing_to_act_on_is_dropped_and_says_so(observed):
    idle, good = Planted("idle", 1.5), Planted("good", 1.3)
    idle.install = lambda value, context: setattr(idle, "context", context)
    with observed(idle, good) as (program, run):
        train(program)
    assert held(run) == {"good": True}
    assert outcomes(run) == {"idle": FixState.NOT_APPLICABLE, "good": FixState.APPLIED}


def test_what_is_less_exact_than_allowed_is_not_kept(observed):
    fix = Planted("pretender", 1.5)
    with observed(fix, allow=FixKind.EXACT) as (program, run):
        program.step()
        fix.context.applied(Applied(MODEL, "Data"), FixKind.NUMERIC)
        train(program)
    assert held(run) == {"pretender": False}


def test_what_cannot_be_installed_says_so_and_the_others_are_tried(observed):
    broken, good = Planted("broken"), Planted("good", 1.3)

    def install(value, context):
        raise ValueError("no")

    broken.install = install
    with observed(broken, good) as (program, run):
        train(program)
    assert held(run) == {"good": True}
    assert outcomes(run)["broken"] is FixState.NOT_APPLICABLE


def test_an_exception_under_a_candidate_ends_the_program_and_names_it(observed):
    def raises(call, module, *args, **kwargs):
        raise RuntimeError("view size is not compatible")

    good, broken = Planted("good", 1.3), Planted("broken", 2.0, called=raises)
    failing = pytest.raises(RuntimeError, match="view size")
    with observed(good, broken) as (program, run), failing:
        program.train(5000)
    assert held(run) == {"good": True}
    assert run.last.trying == ["broken"]
    assert run.last.stopped is None


def test_a_fix_that_fails_to_go_on_ends_the_program_and_is_named(observed):
    fix, good = Planted("broken"), Planted("good", 1.5)

    def switched(on):
        raise ValueError("no")

    with observed(good, fix) as (program, run):
        fix.context.when_switched(switched)
        train(program)
    assert held(run) == {"good": True}
    assert run.last.stopped is AutoStop.FIX_FAILED
    assert run.last.trying == ["broken"]


def test_a_loss_that_is_not_finite_ends_it(observed):
    with observed(Planted("fix", 1.0)) as (program, run):
        program.train(40)
        with suppress(StopProgram):
            program.step(scale=math.inf)
            program.train(5)
    assert run.last.stopped is AutoStop.NOT_FINITE
    assert run.last.trying == ["fix"]


def test_a_program_that_compiles_ends_at_once(observed):
    fix = Planted("good", 1.5)
    with observed(fix) as (program, run):
        program.train(20)
        fix.context.seams.core.compiles = True
        with pytest.raises(StopProgram):
            program.train(10)
    assert run.last.stopped is AutoStop.COMPILES
    assert run.last.trying == []


def test_contests_end_at_their_time_limit(observed):
    """Steps of 10 ms: four fixes that do nothing would take many pairs."""
    same = [Planted(f"same{number}") for number in range(4)]
    with observed(*same, seconds=1.0) as (program, run):
        train(program)
    assert run.last.stopped is AutoStop.OUT_OF_TIME
    assert 1 <= len(run.facts(ContestFact)) < 4


def test_a_contest_that_takes_too_long_is_undecided(observed, clock):
    fix = Planted("late", 1.3)
    with observed(fix, each_s=1.0) as (program, run), suppress(StopProgram):
        program.train(24)
        for step in range(5000):  # some take much longer
            clock.now += 100.0 * (step % 7 == 0)
            program.step()
    (fact,) = run.facts(ContestFact)
    assert not fact.decided
    assert not fact.kept
    assert fact.low < fact.ratio < fact.high


def test_without_two_pairs_in_its_time_a_contest_has_no_result(observed):
    with observed(Planted("late", 1.3), each_s=0.1) as (program, run):
        train(program)
    assert run.facts(ContestFact) == []
    assert run.last.stopped is AutoStop.DONE
    assert outcomes(run) == {"late": FixState.APPLIED}


def test_a_program_that_ends_in_a_contest_leaves_a_readable_folder(observed):
    with observed(Planted("fix", 1.3)) as (program, run):
        program.train(60)
    assert run.last.stopped is None
    assert run.last.trying == ["fix"]
