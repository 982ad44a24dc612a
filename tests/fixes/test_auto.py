"""`run --auto` in a program's process: what gains stays on, and any doubt switches it off."""

import math
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic_ns

import pytest
import torch
from planted_fixes import MODEL, Clock, Planted, Program, observed_program, simulate_time

from stepscope.fixes import auto, in_place
from stepscope.fixes.auto import AutoFixes
from stepscope.probe.observer import Observer
from stepscope.record.facts import AutoStop, ContestFact
from stepscope.record.fix import Applied, FixKind
from stepscope.record.probe_options import AutoOptions, ProbeOptions
from stepscope.store.json_lines import read_facts


@pytest.fixture
def clock(monkeypatch):
    return simulate_time(monkeypatch)


@pytest.fixture
def observed(tmp_path, monkeypatch, clock):
    """`observed(*fixes, …)`: a program under `--auto` with no fixes but these."""

    @contextmanager
    def run(*fixes, allow=FixKind.EXACT, start=(), steps=None, apart=()):
        monkeypatch.setattr(auto, "all_fixes", lambda quiet: [*fixes])
        by_name = {one.name: one for one in fixes}
        monkeypatch.setattr(
            auto, "parse_fixes", lambda asked: [(by_name[name], None) for name in asked]
        )
        exclude = lambda one, other: one != other and {one, other} <= {*apart}  # noqa: E731
        for module in (auto, in_place):
            monkeypatch.setattr(module, "exclude_each_other", exclude)
        options = ProbeOptions(str(tmp_path), monotonic_ns(), window=0, overhead=0.01)
        options = replace(options, auto=AutoOptions(allow, start), steps=steps)
        observer = Observer(options)
        AutoFixes(observer, options.auto).install()
        with observed_program(observer, clock, fixes, tmp_path) as pair:
            yield pair

    return run


def bare(steps):
    torch.manual_seed(0)
    program = Program(Clock(), ())
    program.train(steps)
    return program.losses


def test_what_gains_stays_on_and_losses_are_those_of_a_bare_run(observed, capsys):
    good, bad = Planted("good", 1.05), Planted("bad", 0.8)
    with observed(bad, good) as (program, run):
        program.train(1500)
    assert (good.context.on, bad.context.on) == (True, False)
    assert program.losses == bare(1500)
    assert run.last.kept == ["good"]
    assert run.last.stopped is AutoStop.DONE
    assert {tuple(one.candidate): one.kept for one in run.facts(ContestFact)} == {
        ("bad",): False,
        ("good",): True,
    }
    assert "good on: " in capsys.readouterr().err


def test_with_nothing_to_gain_nothing_is_changed(observed):
    same = [Planted(f"same{number}") for number in range(3)]
    with observed(*same) as (program, run):
        program.train(1500)
    assert not any(one.context.on for one in same)
    assert program.losses == bare(1500)
    assert run.last.kept == []
    assert len(run.facts(ContestFact)) == 3
    core = same[0].context.seams.core
    assert not core.fixing  # so clocks may rest
    assert not any(one.__qualname__.startswith("AutoFixes") for one in core.around_root)
    assert read_facts(run.folder / "facts.jsonl").fixes == []


@pytest.mark.parametrize(("second", "kept"), [(1.5, "second"), (1.0, "first")])
def test_of_two_that_exclude_each_other_the_better_one_is_kept(second, kept, observed):
    fixes = [Planted("first", 1.2), Planted("second", second)]
    with observed(*fixes, apart=("first", "second")) as (program, run):
        for _ in range(1500):
            program.step()
            assert sum(one.context.on for one in fixes) <= 1
    assert run.last.kept == [kept]
    assert [one.fix.name for one in (fix.context for fix in fixes) if one.on] == [kept]
    told = read_facts(run.folder / "facts.jsonl").fixes
    assert {one["name"] for one in told} == {kept}


def test_what_the_program_applies_itself_is_not_tried(observed):
    fix, other = Planted("fix", 1.5), Planted("other", 1.5)
    with observed(fix, other) as (program, run):
        program.step()
        fix.context.watching.core.placed["fix"] = fix.context
        program.train(600)
    assert [one.candidate for one in run.facts(ContestFact)] == [["other"]]


def test_without_candidates_it_is_over_after_the_first_steps(observed):
    with observed() as (program, run):
        program.train(30)
    assert run.last.stopped is AutoStop.NOTHING_TO_TRY
    assert program.losses == bare(30)


def test_only_fixes_of_an_allowed_kind_are_tried(observed):
    fixes = {kind: Planted(str(kind), 2.0, kind) for kind in FixKind}
    with observed(*fixes.values()) as (program, run):
        program.train(600)
    assert [kind for kind, fix in fixes.items() if fix.context is not None] == [FixKind.EXACT]
    assert run.last.kept == ["exact"]


def test_more_may_be_allowed_and_exact_ones_come_first(observed):
    fixes = [Planted("rounds", 1.3, FixKind.NUMERIC), Planted("exact", 1.3)]
    with observed(*fixes, allow=FixKind.NUMERIC) as (program, run):
        program.train(800)
    assert [one.candidate for one in run.facts(ContestFact)] == [["exact"], ["rounds"]]
    assert run.last.kept == ["exact", "rounds"]


def test_what_turns_out_to_be_less_exact_than_allowed_is_not_kept(observed):
    fix = Planted("pretender", 1.5)
    with observed(fix) as (program, run):
        program.step()
        fix.context.applied(Applied(MODEL, "Data"), FixKind.NUMERIC)
        program.train(600)
    assert not fix.context.on
    assert run.last.kept == []


def test_a_fix_that_took_no_effect_is_not_kept(observed):
    fix = Planted("idle", 1.5)
    fix.install = lambda value, context: setattr(fix, "context", context)
    with observed(fix) as (program, run):
        program.train(600)
    assert run.last.kept == run.facts(ContestFact) == []
    assert run.last.stopped is AutoStop.DONE


def test_nothing_is_tried_that_the_rest_of_the_run_cannot_pay_back(observed):
    fix = Planted("late", 2.0)
    with observed(fix, steps=140) as (program, run):
        program.train(100)
    assert run.facts(ContestFact) == []
    assert run.last.stopped is AutoStop.TOO_SHORT


def test_where_no_length_is_known_it_waits_until_the_run_is_long_enough(observed):
    fix = Planted("late", 2.0)
    with observed(fix) as (program, run):
        program.train(100)
        assert not fix.context.on
        assert run.last.stopped is None
        program.train(600)
    assert run.last.kept == ["late"]


def raises(call, module, *args, **kwargs):
    module.layers[0](*args)
    torch.rand(3)
    raise RuntimeError("view size is not compatible")


def test_a_call_that_fails_is_made_again_without_fixes(observed, capsys):
    fix = Planted("broken", 2.0, called=raises)
    with observed(fix) as (program, run):
        program.train(600)
    assert not fix.context.on
    assert program.losses == bare(600)
    assert run.last.stopped is AutoStop.FIX_FAILED
    assert "view size" in run.last.detail
    assert "all fixes off: a fix failed" in capsys.readouterr().err


def test_that_holds_beside_fixes_that_are_kept(observed):
    good, fix = Planted("good", 1.5), Planted("broken", 2.0, called=raises)
    with observed(good, fix) as (program, run):
        program.train(900)
    assert not good.context.on
    assert run.facts(ContestFact)[0].kept
    assert program.losses == bare(900)
    assert run.last.kept == []


def test_a_fix_that_fails_to_go_on_ends_it(observed):
    fix, good = Planted("broken"), Planted("good", 1.5)

    def switched(on):
        raise ValueError("no")

    with observed(good, fix) as (program, run):
        fix.context.when_switched(switched)
        program.train(900)
    assert not good.context.on
    assert program.losses == bare(900)
    assert run.last.stopped is AutoStop.FIX_FAILED


def test_a_program_that_fails_by_itself_sees_its_own_error(observed):
    fix = Planted("good", 1.5)
    with observed(fix) as (program, _):
        program.train(600)
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            program.net(torch.randn(8, 5))
        program.train(10)


def test_during_a_contest_a_loss_that_is_not_finite_switches_all_off(observed):
    fix = Planted("fix", 1.0)
    with observed(fix) as (program, run):
        program.train(140)
        program.step(scale=math.inf)
        program.train(5)
    assert not fix.context.on
    assert run.last.stopped is AutoStop.NOT_FINITE


def test_what_is_kept_goes_off_too_once_it_is_in_doubt(observed):
    fix = Planted("good", 1.5)
    with observed(fix) as (program, run):
        program.train(600)
        assert fix.context.on
        program.step(scale=math.inf)
        program.train(20)
    assert not fix.context.on
    assert run.last.stopped is AutoStop.NOT_FINITE
    assert run.last.kept == []


def test_a_fix_that_cannot_be_installed_is_left_out(observed):
    fix, good = Planted("broken"), Planted("good", 1.5)

    def install(value, context):
        raise ValueError("no")

    fix.install = install
    with observed(fix, good) as (program, run):
        program.train(600)
    assert run.last.kept == ["good"]


def test_what_fails_at_the_very_start_leaves_the_program_alone(observed):
    fix = Planted("good", 1.5)

    def parse(text):
        raise ValueError("no")

    fix.parse = parse
    with observed(fix) as (program, run):
        program.train(60)
    assert run.last.stopped is AutoStop.FIX_FAILED
    assert program.losses == bare(60)


def test_a_program_whose_first_call_in_a_contest_fails_sees_its_own_error(observed):
    fix = Planted("good", 1.5)
    with observed(fix) as (program, _):
        program.train(130)
        while not fix.context.on:
            program.step()
        fix.context.watching.core.around_root[0].__self__._called.clear()
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            program.net(torch.randn(8, 5))
        program.train(20)
    assert not fix.context.on


def test_a_program_whose_losses_were_never_finite_is_served_too(observed):
    fix = Planted("good", 1.5)
    with observed(fix) as (program, run):
        program.step(scale=math.inf)
        program.train(600)
    assert run.last.kept == ["good"]


def test_a_program_that_compiles_is_left_alone(observed):
    fix = Planted("good", 1.5)
    with observed(fix) as (program, run):
        program.train(20)
        fix.context.seams.core.compiles = True
        program.train(300)
    assert run.last.stopped is AutoStop.COMPILES
    assert not fix.context.on


def test_what_an_earlier_run_kept_is_on_from_the_start_and_checked_once(observed):
    one, two, other = Planted("one", 1.2), Planted("two", 1.2), Planted("other", 1.2)
    with observed(one, two, other, start=("one", "two")) as (program, run):
        assert (one.context.on, two.context.on, other.context.on) == (True, True, False)
        program.train(600)
    assert [fact.candidate for fact in run.facts(ContestFact)] == [["one", "two"]]
    assert run.last.kept == ["one", "two"]
    assert program.losses == bare(600)


def test_where_that_no_longer_gains_all_others_are_tried(observed):
    one, other = Planted("one", 0.8), Planted("other", 1.2)
    with observed(one, other, start=("one",)) as (program, run):
        program.train(900)
    assert run.facts(ContestFact)[0].candidate == ["one"]
    assert run.last.kept == ["other"]
    assert not one.context.on


def test_where_that_does_nothing_any_more_all_others_are_tried(observed):
    one, other = Planted("one"), Planted("other", 1.2)
    one.install = lambda value, context: setattr(one, "context", context)
    with observed(one, other, start=("one",)) as (program, run):
        program.train(900)
    assert run.last.kept == ["other"]


def test_a_contest_that_the_programs_end_cuts_short_leaves_a_readable_folder(observed):
    fix = Planted("good", 1.5)
    with observed(fix) as (program, run):
        program.train(140)
    assert run.last.stopped is None
    assert run.last.kept == []
