"""The search on simulated machines: what it keeps, what it says of the rest, what it costs."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as replace_fields
from tune_machine import (
    Machine,
    apart,
    compute_bound,
    launch_bound,
    slow_program,
    untouched,
)

from stepscope.measure.prediction import Prediction
from stepscope.measure.trial.record import Trial
from stepscope.record.errors import UsageError
from stepscope.record.fix import (
    LOADER,
    Applied,
    DataChange,
    FixKind,
    FixOutcome,
    FixState,
    Variation,
)
from stepscope.record.proof import Because, Proof, ProofReason, ProofState
from stepscope.record.trial import Rejection, RejectReason, TrialReason, TrialStatus
from stepscope.tune.search.candidates import (
    Candidate,
    Rejected,
    exclude_each_other,
    setup_seconds,
)
from stepscope.tune.search.confirm import confirm
from stepscope.tune.search.ladder import Ladder
from stepscope.tune.search.strategy import run_search

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


def some(fixes, kind="numeric"):
    return [Candidate(fix, kind, prior=1.03, extra_s=setup_seconds(fix, "cuda")) for fix in fixes]


def combinations(fixes):
    every = (each for size in range(len(fixes) + 1) for each in itertools.combinations(fixes, size))
    return [
        c
        for c in every
        if not any(exclude_each_other(*pair) for pair in itertools.combinations(c, 2))
    ]


DIFFERS = Rejection(RejectReason.DIFFERS)
NEEDS_CUDA = Rejection(RejectReason.NEEDS_DEVICE, "cuda")
IDENTICAL = Proof(ProofState.IDENTICAL, steps=40)
OTHER_LOSS = Proof(ProofState.DIFFERS, Because(ProofReason.OTHER_LOSS, step=3))


@pytest.mark.parametrize(("truth", "fixes"), GRIDS.values(), ids=GRIDS)
def test_a_fifth_of_the_grids_time_finds_97_percent_of_its_best(truth, fixes):
    """Predictions err by 10%, processes by 1%. Over 30 seeds, with the confirmation: 18% of the
    time for the slow program, 18% where launches bound it, 17% where arithmetic does."""
    shares, times = [], []
    for seed in range(8):
        machine = Machine(truth, seed=seed)
        every = combinations(fixes)
        grid_s = sum(
            machine.cost_s(frozenset(c), 40, again == 0) for c in every for again in range(3)
        )
        lab = machine.pool(extra_s=lambda fix: setup_seconds(fix, "cuda"))
        found = run_search(Ladder(lab, machine.predictor(0.1, seed)), some(fixes))
        confirm(lab, found)
        best = min(truth(frozenset(c)) for c in every)
        shares.append(best / truth(frozenset(found.fixes)))
        times.append(lab.budget.spent / grid_s)
    assert min(shares) >= 0.97
    assert np.mean(times) <= 0.205


def test_twenty_fixes_that_do_nothing_leave_no_rung():
    names = [f"batch={n}" for n in range(2, 22)]
    machine = Machine(untouched, noise=apart(0.02))
    found = run_search(Ladder(machine.pool()), some(names))
    assert found.rungs == []
    assert found.fixes == ()
    assert {one.why.state for one in found.rejected} == {"not_better"}
    assert found.trials <= 80


def test_rungs_tell_their_own_and_the_cumulative_gain_and_what_was_predicted():
    machine = Machine(slow_program)
    found = run_search(Ladder(machine.pool(), machine.predictor()), some(GRIDS["slow program"][1]))
    assert found.fixes == ("workers=12", "nosync", "amp=bf16", "pin")
    product = 1.0
    for rung in found.rungs:
        product *= rung.comparison.ratio
        assert rung.cumulative.ratio == pytest.approx(product, rel=0.05)
        assert rung.candidate.predicted.speedup == pytest.approx(rung.comparison.ratio, rel=0.05)
    assert found.rungs[0].comparison.verdict == "faster"
    assert found.trials == len(machine.asks)
    assert [one.fix for one in found.rejected] == ["tf32=on"]


def test_what_only_helps_once_something_else_is_gone_is_tried_again():
    """Half precision is slower until a graph takes the launches away."""
    machine = Machine(launch_bound)
    found = run_search(Ladder(machine.pool()), some(("amp=bf16", "cuda_graph")))
    assert machine.asks[2].fixes == ("amp=bf16",)
    assert found.fixes == ("cuda_graph", "amp=bf16")
    assert found.rejected == []


def test_of_two_that_exclude_each_other_the_better_one_stays():
    def step_ms(fixes):
        return 5.0 if "compile=default" in fixes else 7.0 if "cuda_graph" in fixes else 10.0

    machine = Machine(step_ms)
    first = replace(some(("cuda_graph",))[0], prior=1.5)
    found = run_search(Ladder(machine.pool()), [first, *some(("compile=default",))])
    assert found.fixes == ("compile=default",)
    rung = found.rungs[0]
    assert rung.replaces == "cuda_graph"
    assert rung.comparison.ratio == pytest.approx(2.0, rel=0.05)
    assert rung.compile_s == 20.0
    assert rung.pays_after_steps == pytest.approx(4000, rel=0.1)
    assert [(one.fix, one.why.state) for one in found.rejected] == [("cuda_graph", "replaced")]
    assert not any({"cuda_graph", "compile=default"} <= set(ask.fixes) for ask in machine.asks)


@pytest.mark.parametrize(("status", "kept"), [("broke", True), ("not_applicable", False)])
def test_a_value_that_breaks_the_program_makes_room_for_another(status, kept):
    machine = Machine(
        lambda fixes: 10.0 / (1.5 if fixes else 1),
        ends={"compile=reduce-overhead": (status, "gradients are accumulated")},
    )
    one = Candidate("compile=reduce-overhead", "numeric", instead=("compile=default",))
    found = run_search(Ladder(machine.pool()), [one])
    assert found.fixes == (("compile=default",) if kept else ())
    assert found.rejected[0].why.detail == "gradients are accumulated"


@pytest.mark.parametrize(
    "status", ["not_applicable", "broke", "out_of_memory", "failed", "timed_out"]
)
def test_a_fix_that_does_not_go_well_is_rejected_with_its_reason(status):
    machine = Machine(slow_program, ends={"amp=bf16": (status, "why it was")})
    found = run_search(Ladder(machine.pool()), some(GRIDS["slow program"][1]))
    rejected = next(one for one in found.rejected if one.fix == "amp=bf16")
    assert (rejected.why.state, rejected.why.detail) == (status, "why it was")
    assert "workers=12" in found.fixes
    assert sum("amp=bf16" in ask.fixes for ask in machine.asks) == 1


def test_a_fix_that_leaves_another_nothing_to_do_may_take_its_place():
    class Idle(Machine):
        def _made(self, ask):
            if {"nosync", "lazyitem"} <= set(ask.fixes):
                return replace_fields(
                    super()._made(ask), status=TrialStatus.NOT_APPLICABLE, fix="nosync"
                )
            return super()._made(ask)

    machine = Idle(lambda fixes: 5.0 if "lazyitem" in fixes else 8.0 if fixes else 10.0)
    first = replace(some(("nosync",))[0], prior=1.5)
    found = run_search(Ladder(machine.pool()), [first, *some(("lazyitem",))])
    assert found.fixes == ("lazyitem",)


def test_a_proof_that_differs_rejects_however_fast():
    def prove(fixes, kind, trials):
        assert kind == "numeric"
        assert trials
        assert all(trial.ok for trial in trials)
        differs = "amp=bf16" in fixes
        return OTHER_LOSS if differs else IDENTICAL

    machine = Machine(slow_program)
    found = run_search(Ladder(machine.pool(), prove=prove), some(GRIDS["slow program"][1]))
    rejected = next(one for one in found.rejected if one.fix == "amp=bf16")
    assert (rejected.why.state, rejected.proof) == ("differs", OTHER_LOSS)
    assert rejected.comparison.low > 1.02
    assert "tf32=on" in found.fixes
    assert all(rung.proof.state == "identical" for rung in found.rungs)


def test_what_turns_out_to_change_more_than_allowed_is_rejected():
    def told(ask):
        record = Applied(LOADER, varies=Variation(DataChange.ORDER))
        outcome = FixOutcome("workers", 12, FixState.APPLIED, FixKind.NUMERIC, (record,))
        return {"fixes": (outcome,) if ask.fixes else ()}

    machine = Machine(slow_program, told=told)
    found = run_search(Ladder(machine.pool(), allow="exact"), some(("workers=12",), "exact"))
    assert found.rungs == []
    assert found.rejected[0].why.state == "not_allowed"
    why = found.rejected[0].why
    assert (why.kind, why.detail) == ("numeric", "DataLoader (samples in another order)")


def test_a_rung_that_later_ones_make_useless_is_dropped():
    def step_ms(fixes):
        if "cuda_graph" in fixes:
            return 4.0 - 0.8 * ("amp=bf16" in fixes) - 0.6 * ("pin" in fixes)
        return 10.0 - 2.0 * ("fused_optimizer" in fixes)

    machine = Machine(step_ms)
    first = replace(some(("fused_optimizer",))[0], prior=1.5)
    found = run_search(Ladder(machine.pool()), [first, *some(("cuda_graph", "amp=bf16", "pin"))])
    assert set(found.fixes) == {"cuda_graph", "amp=bf16", "pin"}
    assert [(one.fix, one.why.state) for one in found.rejected] == [("fused_optimizer", "dropped")]
    assert {trial.request.fixes for trial in found.rungs[-1].trials} == {found.fixes}
    assert found.rungs[-1].cumulative.ratio == pytest.approx(10 / 2.6, rel=0.05)


def test_rungs_that_are_still_of_use_stay():
    machine = Machine(slow_program)
    found = run_search(Ladder(machine.pool()), some(("workers=12", "nosync", "amp=bf16", "pin")))
    assert set(found.fixes) == {"workers=12", "nosync", "amp=bf16", "pin"}


def test_what_is_predicted_to_lose_is_not_tried():
    machine = Machine(compute_bound)
    found = run_search(
        Ladder(machine.pool(), machine.predictor()), some(("amp=bf16", "checkpointing"))
    )
    assert found.fixes == ("amp=bf16",)
    assert found.rejected[0].why.reason is RejectReason.PREDICTED_LOSS
    assert not any("checkpointing" in ask.fixes for ask in machine.asks)


def test_a_fix_that_needs_another_waits_for_it():
    def step_ms(fixes):
        if "workers=4" not in fixes:
            return 10.0
        return 3.0 if "persistent" in fixes else 6.0

    kept = replace(some(("persistent",))[0], after="workers")
    machine = Machine(step_ms)
    found = run_search(Ladder(machine.pool()), [kept, *some(("workers=4",))])
    assert found.fixes == ("workers=4", "persistent")
    alone = run_search(Ladder(Machine(untouched).pool()), [kept, *some(("workers=4",))])
    assert {one.fix: one.why.state for one in alone.rejected}["persistent"] == "left_out"


def test_numbers_are_refined_in_the_direction_that_helps():
    def step_ms(fixes):
        workers = next((int(one[8:]) for one in fixes if one.startswith("workers=")), 0)
        return max(40.0 / workers, 3.0) if workers else 40.0

    machine = Machine(step_ms)
    found = run_search(
        Ladder(machine.pool()),
        some(("workers=4",)),
        others=lambda name, value: [str(2 * int(value)), str(int(value) // 2)],
    )
    assert found.fixes == ("workers=16",)
    assert {one.fix: one.why.state for one in found.rejected} == {
        "workers=4": "replaced",
        "workers=8": "replaced",
        "workers=32": "not_better",
    }


def test_what_was_left_out_is_among_the_rejected():
    machine = Machine(untouched)
    found = run_search(Ladder(machine.pool()), [], [Rejected("pin", NEEDS_CUDA)])
    assert [(one.fix, one.why, one.why.state) for one in found.rejected] == [
        ("pin", NEEDS_CUDA, "left_out")
    ]
    assert len(found.baseline) == found.trials == 2


def test_a_program_that_fails_as_it_is_ends_in_one_line():
    class Broken(Machine):
        def _made(self, ask):
            failed = TrialStatus.FAILED, TrialReason.PROGRAM_FAILED
            return Trial(ask, 1, *failed, code=1)

    with pytest.raises(UsageError, match="baseline failed: exit code 1"):
        run_search(Ladder(Broken(untouched).pool()), [])


def test_an_objective_that_trials_do_not_tell_of_ends_in_one_line():
    with pytest.raises(UsageError, match="--objective energy"):
        run_search(Ladder(Machine(untouched).pool(objective="energy")), some(("pin",)))


def test_the_same_records_lead_to_the_same_search():
    def once():
        machine = Machine(slow_program, seed=4, noise=apart(0.03))
        found = run_search(
            Ladder(machine.pool(), machine.predictor(0.1)), some(GRIDS["slow program"][1])
        )
        return machine.asks, found

    first, second = once(), once()
    assert first == second


def test_a_withdrawn_rung_leaves_the_set_without_it():
    machine = Machine(slow_program)
    standing = Ladder(machine.pool(), machine.predictor())
    found = run_search(standing, some(GRIDS["slow program"][1]))
    rung = next(one for one in found.rungs if one.candidate.name == "amp")
    standing.withdraw(rung.candidate, Rejected("amp=bf16", DIFFERS))
    assert found.fixes == ("workers=12", "nosync", "pin")
    assert found.rejected[-1].fix == "amp=bf16"
    assert standing.pool.best == found.fixes


TOGETHER = [
    Candidate("amp=bf16", "numeric", along=("channels_last",)),
    Candidate("amp=bf16", "numeric"),
    Candidate("channels_last", "numeric"),
]


def only_both(fixes):
    """Each alone costs transposes."""
    both = {"amp=bf16", "channels_last"}
    return 10.0 if both.isdisjoint(fixes) else 6.0 if both <= fixes else 10.5


def test_fixes_that_help_only_together_are_found():
    machine = Machine(only_both)
    found = run_search(Ladder(machine.pool(), machine.predictor()), TOGETHER)
    assert set(found.fixes) == {"amp=bf16", "channels_last"}
    assert [rung.candidate.whole for rung in found.rungs] == [("amp=bf16", "channels_last")]
    assert found.rungs[0].candidate.along == ("channels_last",)
    assert (found.rejected, found.untried) == ([], [])


ALL_THREE = [
    *TOGETHER,
    Candidate(
        "amp=bf16", "numeric", extra_s=35.0, along=("channels_last", "compile=reduce-overhead")
    ),
    Candidate("compile=reduce-overhead", "numeric", extra_s=35.0),
]


def only_all(fixes):
    """Two hide behind launches, the third leaves the arithmetic as it is."""
    return 10.0 if "compile=reduce-overhead" not in fixes else only_both(fixes) - 3.0


def test_fixes_that_are_hidden_by_launches_are_found_with_the_compiler():
    machine = Machine(only_all)
    found = run_search(Ladder(machine.pool(), machine.predictor()), ALL_THREE)
    assert set(found.fixes) == {"amp=bf16", "channels_last", "compile=reduce-overhead"}
    assert len(found.rungs) == 1
    assert (found.rejected, found.untried) == ([], [])


COMPILED = "compile=reduce-overhead"
GRAPHED = [
    *TOGETHER,
    Candidate("amp=bf16", "numeric", along=("channels_last", "cuda_graph")),
    Candidate("cuda_graph", "numeric"),
]


def test_a_part_that_has_nothing_to_do_is_tried_once_and_the_set_without_it():
    machine = Machine(only_both, ends={"cuda_graph": ("not_applicable", "called in a thread")})
    wide = [replace(one, predicted=Prediction(2.0 + len(one.along), 1.0, 9.0)) for one in GRAPHED]
    found = run_search(Ladder(machine.pool()), wide)
    assert [rung.candidate.whole for rung in found.rungs] == [("amp=bf16", "channels_last")]
    assert [ask.fixes for ask in machine.asks if "cuda_graph" in ask.fixes] == [
        ("amp=bf16", "channels_last", "cuda_graph")
    ]
    (one,) = found.rejected
    assert (one.fix, one.why.state, one.why.detail) == (
        "cuda_graph",
        "not_applicable",
        "called in a thread",
    )


def test_what_is_left_of_a_set_without_its_idle_part_has_its_chance():
    ends = {"channels_last": ("not_applicable", "no convolutions")}
    machine = Machine(lambda fixes: 10.0 if len(fixes) < 2 else 6.0, ends=ends)
    found = run_search(Ladder(machine.pool()), GRAPHED[3:])
    assert set(found.fixes) == {"amp=bf16", "cuda_graph"}
    assert [one.fix for one in found.rejected] == ["channels_last"]


def test_a_part_of_a_set_that_another_fix_replaces_is_told():
    def step_ms(fixes):
        step = only_both(fixes) - 2.0 * ("cuda_graph" in fixes) - 4.0 * (COMPILED in fixes)
        return step * (0.88 if "pin" in fixes else 1.0)

    machine = Machine(step_ms)
    graphed = [replace(one, prior=1.5 + len(one.along)) for one in GRAPHED]
    compiled = Candidate(COMPILED, "numeric", prior=1.02, extra_s=35.0)
    found = run_search(Ladder(machine.pool()), [*graphed, compiled, Candidate("pin", "exact")])
    assert [(rung.candidate.whole, rung.replaces) for rung in found.rungs] == [
        (("amp=bf16", "channels_last", "cuda_graph"), None),
        ((COMPILED,), "cuda_graph"),
        (("pin",), None),
    ]
    assert found.fixes == ("amp=bf16", "channels_last", COMPILED, "pin")
    (one,) = found.rejected
    assert (one.fix, one.why.state) == ("cuda_graph", "replaced")
    assert one.why.fix == COMPILED
    assert one.comparison.ratio == pytest.approx(2.0, rel=0.05)


def test_a_part_of_a_set_that_does_nothing_is_taken_out():
    machine = Machine(lambda fixes: 6.0 if "amp=bf16" in fixes else 10.0)
    found = run_search(
        Ladder(machine.pool(), machine.predictor(blind=("channels_last",))), TOGETHER
    )
    (rung,) = found.rungs
    assert (rung.candidate.whole, rung.fixes) == (("amp=bf16",), ("amp=bf16",))
    assert {trial.request.fixes for trial in rung.trials} == {("amp=bf16",)}
    assert [(one.fix, one.why.state) for one in found.rejected] == [("channels_last", "dropped")]


def test_a_part_whose_loss_is_predicted_costs_no_trial_and_one_that_is_needed_stays():
    together = Candidate("workers=8", "exact", along=("persistent",))
    machine = Machine(lambda fixes: 20.0 - 10.0 * bool(fixes) - 3.0 * ("persistent" in fixes))
    found = run_search(Ladder(machine.pool(), machine.predictor()), [together])
    assert found.rungs[0].candidate.whole == ("workers=8", "persistent")
    assert {ask.fixes for ask in machine.asks} == {(), ("workers=8", "persistent")}


def test_a_part_stays_where_training_differs_without_it():
    machine = Machine(lambda fixes: 6.0 if "amp=bf16" in fixes else 10.0)

    def proven(fixes, kind, trials):
        return IDENTICAL if "channels_last" in fixes else OTHER_LOSS

    found = run_search(Ladder(machine.pool(), prove=proven), TOGETHER[:1])
    assert found.fixes == ("amp=bf16", "channels_last")
    assert found.rungs[0].candidate.along == ("channels_last",)


def test_what_was_kept_with_a_value_stays_with_the_one_in_its_place():
    """More workers, which are kept and recycle their memory as those before."""

    def step_ms(fixes):
        step = 5.0 if "workers=16" in fixes else 8.0
        return step + 2.0 * len({"persistent", "recycle"} - fixes) if fixes else 20.0

    machine = Machine(step_ms)
    one = Candidate("workers=8", "exact", along=("persistent", "recycle"))
    more = {"8": ("16",)}
    found = run_search(Ladder(machine.pool()), [one], others=lambda _, value: more.get(value, ()))
    (rung,) = found.rungs
    assert rung.candidate.whole == ("workers=16", "persistent", "recycle")
    assert set(rung.fixes) == {"workers=16", "persistent", "recycle"}
    assert (rung.replaces, rung.comparison.ratio) == ("workers=8", pytest.approx(4.0, rel=0.05))


def test_what_is_kept_of_a_set_already_is_no_part_of_its_rung():
    machine = Machine(lambda fixes: only_both(fixes) - 2.0 * ("compile=reduce-overhead" in fixes))
    found = run_search(Ladder(machine.pool(), machine.predictor()), ALL_THREE)
    assert [rung.candidate.whole for rung in found.rungs] == [
        ("amp=bf16", "channels_last"),
        ("compile=reduce-overhead",),
    ]
    compiled = [ask for ask in machine.asks if "compile=reduce-overhead" in ask.fixes]
    assert {len(ask.fixes) for ask in compiled} == {3}


def test_a_set_that_lost_is_tried_again_where_the_ladder_has_grown():
    """Nothing shows beside launches; a graph takes them away, and then both together help."""
    machine = Machine(lambda fixes: only_both(fixes) - 3.0 if "cuda_graph" in fixes else 10.0)
    found = run_search(Ladder(machine.pool()), [*TOGETHER, *some(["cuda_graph"])])
    assert found.fixes == ("cuda_graph", "amp=bf16", "channels_last")


def test_what_the_budget_ends_in_the_middle_is_told_with_its_gain():
    machine = Machine(lambda fixes: 10.0 - 0.6 * ("pin" in fixes), noise=apart(0.01))
    whole = run_search(Ladder(machine.pool()), some(["pin"]))
    assert whole.fixes == ("pin",)
    machine = Machine(lambda fixes: 10.0 - 0.6 * ("pin" in fixes), noise=apart(0.01))
    kept_back = 6 * machine.cost_s(frozenset(), 40)
    found = run_search(Ladder(machine.pool(0.7 * whole.seconds + kept_back)), some(["pin"]))
    assert (found.fixes, found.stopped, found.untried) == ((), "budget", [])
    (one,) = found.rejected
    assert (one.fix, one.why.state) == ("pin", "unsettled")
    assert one.why == Rejection(RejectReason.UNSETTLED, trials=3)


def test_where_one_of_two_does_not_go_well_the_other_has_its_own_chance():
    machine = Machine(
        lambda fixes: 6.0 if "amp=bf16" in fixes else 10.0,
        ends={"channels_last": ("broke", "view size is not compatible")},
    )
    found = run_search(Ladder(machine.pool(), machine.predictor()), TOGETHER)
    assert found.fixes == ("amp=bf16",)
    assert [(one.fix, one.why.state) for one in found.rejected] == [("channels_last", "broke")]


def test_a_pair_of_which_the_proof_differs_goes_as_one():
    machine = Machine(only_both)
    found = run_search(Ladder(machine.pool(), prove=lambda *_: OTHER_LOSS), TOGETHER)
    assert found.fixes == ()
    standing = Ladder(Machine(only_both).pool())
    kept = run_search(standing, TOGETHER)
    standing.withdraw(kept.rungs[0].candidate, Rejected("amp=bf16", DIFFERS))
    assert standing.fixes == ()
