"""The search with contests inside one process: what it keeps, what it says of the rest, and what
becomes of candidates that break the process."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as replace_fields
from tune_machine import Machine, apart, compute_bound, launch_bound, slow_program, untouched

from stepscope.cli.tune import trial_line, trial_name
from stepscope.measure.prediction import Prediction
from stepscope.measure.trial.record import ContestRequest, Trial, TrialRequest
from stepscope.record.facts import AutoStop
from stepscope.record.fix import Applied, FixKind, FixOutcome, FixState, Target
from stepscope.record.proof import Because, Proof, ProofReason, ProofState
from stepscope.record.trial import RejectReason, TrialReason, TrialStatus
from stepscope.tune.search.candidates import Candidate, setup_seconds
from stepscope.tune.search.ladder import Ladder
from stepscope.tune.search.strategy import run_search
from stepscope.tune.tuner import TrialEvent

AT_STEP = (
    *("tf32=on", "cudnn_benchmark", "amp=bf16", "channels_last", "sdpa", "foreach"),
    *("nosync", "lazyitem"),
)
"""Fixes that can be switched between two steps."""
SERIES = Path(__file__).parents[2] / "benchmarks" / "results" / "aa-series.npz"


def some(*fixes, prior=1.03):
    return [Candidate(fix, "numeric", prior=prior) for fix in fixes]


def searched(machine, candidates, seconds=1e6, prove=None, predict=False, most_steps=None):
    """What a search with contests in place finds."""
    pool = machine.pool(seconds, extra_s=lambda fix: setup_seconds(fix, "cuda"))
    pool.most_steps = most_steps
    ladder = Ladder(pool, prove=prove, in_place=True)
    if predict:
        ladder.predict = machine.predictor(0.1)
    return run_search(ladder, candidates)


def in_place(machine):
    """The requests for contests, each with what was kept then."""
    return [(ask.fixes, ask.contests.candidates) for ask in machine.asks if ask.contests]


def by_trials(machine, fix):
    return [ask for ask in machine.asks if fix in ask.fixes]


def gains(**speedups):
    """Step times of a program by the fixes that shorten them."""

    def step_ms(fixes):
        found = (speedups.get(one.partition("=")[0], 1.0) for one in fixes)
        return 10.0 / math.prod(found)

    return step_ms


def test_what_wins_in_place_joins_the_ladder_and_what_loses_is_rejected_with_its_interval():
    machine = Machine(gains(tf32=1.5, nosync=1.2, foreach=0.8))
    found = searched(machine, some("tf32=on", "foreach", "nosync"))
    assert {*found.fixes} == {"tf32=on", "nosync"}
    assert in_place(machine)[0] == ((), (("foreach",), ("nosync",), ("tf32=on",)))
    assert by_trials(machine, "foreach") == []
    (lost,) = found.rejected
    assert (lost.fix, lost.why.reason) == ("foreach", RejectReason.NOT_BETTER)
    assert lost.comparison.low < 0.8 < lost.comparison.high
    rungs = {rung.candidate.fix: rung for rung in found.rungs}
    assert rungs["tf32=on"].comparison.ratio == pytest.approx(1.5, rel=0.05)
    assert found.rungs[-1].cumulative.ratio == pytest.approx(1.8, rel=0.05)
    assert all(rung.in_place for rung in found.rungs)


def test_what_won_in_one_process_is_verified_by_one_trial():
    machine = Machine(gains(tf32=1.1, nosync=1.07, sdpa=1.06))
    found = searched(machine, some("tf32=on", "nosync", "sdpa"))
    assert {*found.fixes} == {"tf32=on", "nosync", "sdpa"}
    made = [ask.fixes for ask in machine.asks if ask.fixes]
    assert len(made) == 1
    assert {*made[0]} == {*found.fixes}
    assert [len(rung.trials) for rung in found.rungs] == [0, 0, 1]


def test_its_proof_covers_the_rungs_below():
    proofs = []

    def prove(fixes, kind, trials):
        proofs.append((fixes, kind))
        return IDENTICAL

    machine = Machine(gains(tf32=1.5, nosync=1.2))
    found = searched(machine, some("tf32=on", "nosync"), prove=prove)
    assert proofs == [(found.fixes, "numeric")]
    assert [rung.proof.whole_ladder for rung in found.rungs] == [True, False]


def test_contests_are_told_with_their_steps_and_seconds():
    machine = Machine(gains(tf32=1.5, workers=2.0))
    found = searched(machine, some("tf32=on", "workers=4"))
    held = {one.fixes: one for one in found.contests}
    assert {fixes: one.in_place for fixes, one in held.items()} == {
        ("tf32=on",): True,
        ("workers=4",): False,
    }
    assert all(one.steps > 0 and one.seconds > 0 for one in held.values())


GRIDS = {
    "slow program": (slow_program, ("workers=12", "nosync", "amp=bf16", "tf32=on", "pin")),
    "launch bound": (
        launch_bound,
        ("cuda_graph", "amp=bf16", "channels_last", "fused_optimizer", "compile=reduce-overhead"),
    ),
    "compute bound": (
        compute_bound,
        ("amp=bf16", "channels_last", "tf32=on", "compile=default", "fused_optimizer"),
    ),
}


SMALL = ("tf32=on", "nosync", "fused_optimizer", "channels_last", "sdpa", "cudnn_benchmark")
small_gains = gains(tf32=1.08, nosync=1.05, fused_optimizer=1.1, channels_last=0.97)


def compared(truth, fixes, in_place, seeds=6):
    """(share of the best, seconds) of several searches."""
    every = [c for size in range(7) for c in itertools.combinations(fixes, size)]
    best = min(truth(frozenset(c)) for c in every)
    for seed in range(seeds):
        machine = Machine(truth, seed=seed)
        pool = machine.pool(extra_s=lambda fix: setup_seconds(fix, "cuda"))
        ladder = Ladder(pool, machine.predictor(0.1, seed), in_place=in_place)
        candidates = [replace(one, extra_s=setup_seconds(one.fix, "cuda")) for one in some(*fixes)]
        found = run_search(ladder, candidates)
        yield best / truth(frozenset(found.fixes)), pool.budget.spent


@pytest.mark.parametrize(("truth", "fixes"), GRIDS.values(), ids=GRIDS)
def test_large_gains_are_found_as_by_trials(truth, fixes):
    held, made = (np.array([*compared(truth, fixes, place)]) for place in (True, False))
    assert held[:, 0].min() >= 0.97
    assert held[:, 1].sum() <= 1.05 * made[:, 1].sum()


def test_small_gains_are_found_in_half_the_time_of_trials():
    """Processes differ by 1%, steps by 5%."""
    held, made = (np.array([*compared(small_gains, SMALL, place)]) for place in (True, False))
    assert held[:, 0].min() >= 0.97
    assert held[:, 0].mean() > made[:, 0].mean()
    assert held[:, 1].sum() <= 0.5 * made[:, 1].sum()


def recorded():
    """Noise of recorded steps, begun anywhere in a series."""
    every = [series for series in np.load(SERIES).values() if series.ndim == 1 and len(series) > 64]

    def factors(draw, steps):
        series = every[draw.integers(len(every))]
        return np.resize(np.roll(series / series.mean(), draw.integers(len(series))), steps)

    return factors


@pytest.mark.parametrize("noise", [apart(0.01), apart(0.1, 0.2), recorded()])
def test_fixes_that_do_nothing_are_hardly_ever_kept(noise):
    """At most 1 in 20, of a hundred."""
    kept = contests = 0
    for seed in range(13):
        machine = Machine(untouched, noise=noise, seed=seed)
        found = searched(machine, some(*AT_STEP))
        kept += len(found.rungs)
        contests += sum(one.in_place for one in found.contests)
    assert contests >= 100
    assert kept <= contests / 20


@pytest.mark.parametrize("status", ["broke", "out_of_memory"])
def test_a_candidate_that_breaks_the_process_costs_that_process(status):
    machine = Machine(gains(tf32=1.5, nosync=1.3), ends={"foreach": (status, "why it was")})
    candidates = some("tf32=on", "foreach", "nosync")
    found = searched(machine, candidates)
    assert in_place(machine) == [
        ((), (("foreach",), ("nosync",), ("tf32=on",))),
        ((), (("nosync",), ("tf32=on",))),
    ]
    assert {*found.fixes} == {"tf32=on", "nosync"}
    (rejected,) = found.rejected
    assert (rejected.why.state, rejected.why.detail) == (status, "why it was")
    assert by_trials(machine, "foreach") == []


@pytest.mark.parametrize("status", ["failed", "timed_out"])
def test_where_the_program_may_have_failed_by_itself_a_trial_tells(status):
    machine = Machine(gains(nosync=1.3), ends={"foreach": (status, "why it was")})
    found = searched(machine, some("foreach", "nosync"))
    assert found.fixes == ("nosync",)
    assert [one.why.detail for one in found.rejected] == ["why it was"]
    assert len(by_trials(machine, "foreach")) == 1


def test_after_three_processes_that_broke_the_others_are_tried_by_trials():
    ends = dict.fromkeys(AT_STEP[:5], ("failed", "unlucky"))
    machine = Machine(gains(nosync=1.3), ends=ends)
    found = searched(machine, some(*AT_STEP))
    assert found.fixes == ("nosync",)
    assert len(in_place(machine)) == 3


def test_a_loss_that_is_not_finite_rejects_what_was_on():
    class Diverging(Machine):
        def _held(self, ask):
            trial = super()._held(ask)
            if trial.trying != ("foreach",):
                return trial
            broke = TrialStatus.BROKE, TrialReason.NOT_FINITE, AutoStop.NOT_FINITE
            status, reason, stopped = broke
            return replace_fields(trial, status=status, reason=reason, stopped=stopped)

    machine = Diverging(gains(nosync=1.3), ends={"foreach": ("broke", "")})
    found = searched(machine, some("foreach", "nosync"))
    assert found.fixes == ("nosync",)
    assert [one.why.detail for one in found.rejected] == ["a loss is not finite"]


def test_what_has_nothing_to_act_on_is_rejected_without_a_trial():
    machine = Machine(gains(nosync=1.3), ends={"sdpa": ("not_applicable", "no attention")})
    found = searched(machine, some("sdpa", "nosync"))
    assert found.fixes == ("nosync",)
    (rejected,) = found.rejected
    assert (rejected.fix, rejected.why.state) == ("sdpa", "not_applicable")
    assert rejected.why.detail == "no attention"
    assert by_trials(machine, "sdpa") == []


@pytest.mark.parametrize("why", [AutoStop.COMPILES, AutoStop.CAPTURES, AutoStop.DISTRIBUTED])
def test_a_program_that_cannot_be_switched_is_tuned_by_trials(why):
    class Unswitchable(Machine):
        def _held(self, ask):
            trial = super()._held(ask)
            return replace_fields(trial, contests=(), stopped=why, trying=())

    machine = Unswitchable(gains(tf32=1.5, nosync=1.3))
    found = searched(machine, some("tf32=on", "nosync"))
    assert {*found.fixes} == {"tf32=on", "nosync"}
    assert len(in_place(machine)) == 1
    assert not any(one.in_place for one in found.contests)


def test_a_program_too_short_for_a_contest_is_tuned_by_trials():
    machine = Machine(gains(tf32=1.5))
    found = searched(machine, some("tf32=on"), most_steps=80)
    assert found.fixes == ("tf32=on",)
    assert in_place(machine) == []


def test_what_a_program_was_too_short_for_is_tried_by_trials():
    machine = Machine(gains(tf32=1.5, nosync=1.5))
    found = searched(machine, some("tf32=on", "nosync"), most_steps=250)
    assert {*found.fixes} == {"tf32=on", "nosync"}
    assert [len(one.trials) for one in found.rungs] >= [1, 2]
    assert {one.fixes: one.in_place for one in found.contests} == {
        ("nosync",): True,
        ("tf32=on",): False,
    }


def test_what_is_compiled_or_captured_is_not_switched():
    machine = Machine(gains(cuda_graph=3.0, tf32=1.5))
    graph = replace(some("cuda_graph")[0], prior=9.0)
    found = searched(machine, [graph, *some("tf32=on", prior=1.001)])
    assert {*found.fixes} == {"cuda_graph", "tf32=on"}
    assert not any("cuda_graph" in fixes for fixes, _ in in_place(machine))


def test_only_speed_is_compared_in_place():
    machine = Machine(gains(tf32=1.5), told=lambda ask: {"energy_j_per_step": 2.0})
    pool = machine.pool(objective="energy")
    run_search(Ladder(pool, in_place=True), some("tf32=on"))
    assert in_place(machine) == []


def test_what_excludes_a_kept_fix_is_tried_by_trials_and_may_replace_it():
    machine = Machine(gains(foreach=1.2, fused_optimizer=1.5, workers=2.0))
    first = replace(some("foreach")[0], predicted=Prediction(1.9, 1.8, 2.0))
    later = replace(some("fused_optimizer")[0], predicted=Prediction(1.3, 1.2, 1.4))
    found = searched(machine, [first, later])
    assert found.fixes == ("fused_optimizer",)
    assert [(one.fix, one.why.state) for one in found.rejected] == [("foreach", "replaced")]
    assert found.rungs[0].cumulative.ratio == pytest.approx(1.5, rel=0.05)
    assert len(in_place(machine)) == 1


DIFFERS = Proof(ProofState.DIFFERS, Because(ProofReason.OTHER_LOSS, step=3))
IDENTICAL = Proof(ProofState.IDENTICAL, steps=40)


def test_what_was_compared_on_top_of_a_refused_winner_is_compared_again():
    def prove(fixes, kind, trials):
        assert trials
        return DIFFERS if "foreach" in fixes else IDENTICAL

    machine = Machine(gains(foreach=1.5, nosync=1.2))
    found = searched(machine, some("foreach", "nosync"), prove=prove)
    assert found.fixes == ("nosync",)
    assert [(one.fix, one.why.state) for one in found.rejected] == [("foreach", "differs")]
    assert in_place(machine) == [((), (("foreach",), ("nosync",))), ((), (("nosync",),))]


def test_a_winner_that_fails_from_its_start_is_not_kept():
    class OnlyLater(Machine):
        def _made(self, ask):
            if "foreach" in ask.fixes:
                failed = TrialStatus.FAILED, TrialReason.PROGRAM_FAILED
                return replace_fields(
                    super()._made(ask), status=failed[0], reason=failed[1], detail="boom"
                )
            return super()._made(ask)

    found = searched(OnlyLater(gains(foreach=1.5)), some("foreach"))
    assert found.fixes == ()
    assert [one.why.detail for one in found.rejected] == ["boom"]


def test_a_winner_that_trials_show_to_be_slower_is_not_kept():
    class SlowFromTheStart(Machine):
        def _made(self, ask):
            trial = super()._made(ask)
            slower = tuple(2.5 * one for one in trial.step_ms)
            return replace_fields(trial, step_ms=slower) if "foreach" in ask.fixes else trial

    found = searched(SlowFromTheStart(gains(foreach=1.5)), some("foreach"))
    assert found.fixes == ()
    (rejected,) = found.rejected
    assert rejected.why.reason is RejectReason.NOT_BETTER
    assert rejected.comparison.high < 1


def test_what_turns_out_to_change_more_than_allowed_is_rejected():
    class Changing(Machine):
        def _held(self, ask):
            trial = super()._held(ask)
            held = tuple(replace_fields(one, kept=False) for one in trial.contests)
            record = Applied(Target("model", "{object}"), "Net", kind=FixKind.NUMERIC)
            numeric = FixOutcome("nosync", None, FixState.APPLIED, FixKind.NUMERIC, (record,))
            return replace_fields(trial, contests=held, fixes=(numeric,))

    machine = Changing(gains(nosync=1.5))
    ladder = Ladder(machine.pool(), allow="exact", in_place=True)
    found = run_search(ladder, [Candidate("nosync", "exact")])
    assert found.fixes == ()
    assert found.rejected[0].why.state == "not_allowed"


def test_an_undecided_small_gain_is_told_with_its_interval():
    machine = Machine(gains(nosync=1.015), noise=apart(0.01, 0.3))
    found = searched(machine, some("nosync"))
    assert found.fixes == ()
    (rejected,) = found.rejected
    assert rejected.why.reason in (RejectReason.NOT_CLEAR, RejectReason.NOT_BETTER)
    assert rejected.comparison.low < 1.015 < rejected.comparison.high
    assert by_trials(machine, "nosync") == []


def test_an_undecided_gain_that_is_predicted_to_be_large_is_settled_by_trials():
    class Undecided(Machine):
        def _held(self, ask):
            trial = super()._held(ask)
            held = tuple(
                replace_fields(one, kept=False, decided=False, ratio=1.2, low=0.8, high=1.8)
                for one in trial.contests
            )
            return replace_fields(trial, contests=held)

    machine = Undecided(gains(tf32=1.5, nosync=1.5))
    small = replace(some("nosync")[0], prior=1.02)
    found = searched(machine, [*some("tf32=on", prior=1.5), small])
    assert found.fixes == ("tf32=on",)
    assert [(one.fix, one.why.reason) for one in found.rejected] == [
        ("nosync", RejectReason.NOT_CLEAR)
    ]


def test_fixes_that_help_only_together_are_switched_as_one():
    def only_both(fixes):
        both = {"amp=bf16", "channels_last"}
        return 10.0 if both.isdisjoint(fixes) else 6.0 if both <= fixes else 10.5

    machine = Machine(only_both)
    together = [
        Candidate("amp=bf16", "numeric", along=("channels_last",)),
        *some("amp=bf16", "channels_last"),
    ]
    found = searched(machine, together)
    assert {*found.fixes} == {"amp=bf16", "channels_last"}
    assert [rung.candidate.whole for rung in found.rungs] == [("amp=bf16", "channels_last")]
    assert in_place(machine)[0][1][0] == ("amp=bf16", "channels_last")
    assert found.rejected == []


def test_of_a_set_with_an_idle_part_the_other_is_tried_alone_once():
    ends = {"channels_last": ("not_applicable", "no convolutions")}
    machine = Machine(gains(amp=0.9), ends=ends)
    together = [
        Candidate("amp=bf16", "numeric", along=("channels_last",)),
        *some("amp=bf16", "channels_last"),
    ]
    found = searched(machine, together)
    assert {one.fix: str(one.why.state) for one in found.rejected} == {
        "channels_last": "not_applicable",
        "amp=bf16": "not_better",
    }
    assert [one.fixes for one in found.contests] == [("amp=bf16",)]


def test_what_lost_in_place_is_tried_there_again_once_the_step_is_much_shorter():
    machine = Machine(slow_program)
    found = searched(machine, some("workers=12", "amp=bf16"), predict=True)
    alone = searched(Machine(slow_program), some("amp=bf16"))
    assert "workers=12" in found.fixes
    assert {*found.fixes} >= {*alone.fixes}
    assert all(one.in_place for one in found.contests if one.fixes == ("amp=bf16",))


def test_an_interrupt_in_the_middle_leaves_what_was_kept_before():
    machine = Machine(gains(workers=2.0, tf32=1.5), stop_at=5)
    first = replace(some("workers=4")[0], prior=9.0)
    found = searched(machine, [first, *some("tf32=on", prior=1.001)])
    assert found.stopped == "interrupted"
    assert {*found.fixes} <= {"workers=4"}


@pytest.mark.parametrize("fixes", [("tf32=on",), ("tf32=on", "nosync")])
def test_a_budget_that_ends_before_winners_are_verified_leaves_them_unsettled(fixes):
    class Expensive(Machine):
        """What is switched on from the start takes all the time there is."""

        def _made(self, ask):
            if ask.fixes:
                cut = TrialStatus.TIMED_OUT, TrialReason.OUT_OF_BUDGET
                return Trial(ask, len(self.asks), *cut, seconds=ask.limit_s)
            return super()._made(ask)

    machine = Expensive(gains(tf32=1.5, nosync=1.5))
    found = searched(machine, some(*fixes), seconds=600.0)
    assert found.fixes == ()
    assert found.stopped == "budget"
    assert {one.fix: str(one.why.state) for one in found.rejected} == dict.fromkeys(
        fixes, "unsettled"
    )
    assert found.untried == []


def test_the_time_of_contests_is_bounded_by_the_budget():
    machine = Machine(lambda fixes: 200.0)
    found = searched(machine, some(*AT_STEP), seconds=300.0)
    (held,) = [ask.contests for ask in machine.asks if ask.contests][:1]
    assert held.seconds <= 150.0
    assert found.seconds <= 300.0


def test_limits_of_time_do_not_make_another_request():
    machine = Machine(gains(tf32=1.5))
    searched(machine, some("tf32=on"))
    (ask,) = [ask for ask in machine.asks if ask.contests]
    longer = replace_fields(ask, contests=replace_fields(ask.contests, seconds=1.0, each_s=2.0))
    assert longer.key() == ask.key()
    assert replace_fields(ask, contests=None).key() == TrialRequest(steps=ask.steps).key()


def test_the_same_records_lead_to_the_same_search():
    def once():
        machine = Machine(launch_bound, seed=4, noise=apart(0.03))
        found = searched(machine, some(*GRIDS["launch bound"][1]), predict=True)
        return machine.asks, found

    assert once() == once()


def test_the_line_of_progress_names_the_candidates_and_how_many_gained():
    machine = Machine(gains(tf32=1.5, foreach=0.8))
    searched(machine, some("tf32=on", "foreach"))
    trial = next(one for one in machine.trials if one.contests)
    event = TrialEvent(trial.request, trial, 20.0, 600.0)
    assert trial_name(trial.request) == "in place: foreach, tf32=on"
    assert "1 of 2 faster" in trial_line(event, trial)
    many = ContestRequest(tuple((f"f{n}" * 9,) for n in range(9)), "numeric", 1.0, 1.0)
    assert len(trial_name(TrialRequest(contests=many))) == 48
