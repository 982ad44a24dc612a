"""How trials ended, compared: what counts as a difference and what does not."""

import math
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from msgspec.structs import replace

from stepscope.measure.trial.final_state import FinalState
from stepscope.measure.trial.printed import read_printed
from stepscope.measure.trial.record import ProofRecord, Trial, TrialRequest
from stepscope.record.facts import TensorState
from stepscope.record.kinds import EndPart
from stepscope.record.proof import ProofReason, ProofState
from stepscope.record.trial import TrialStatus
from stepscope.report.story.tune.words import proof_sentence
from stepscope.tune.proof.final_states import FinalStates
from stepscope.tune.proof.judge import judge_exact, judge_numeric
from stepscope.tune.proof.prove import prove

STEPS = 40


def tensor(part: EndPart, name: str, values: Any, integral: bool = False) -> TensorState:
    """As the probe tells of it, but for the signs."""
    array = np.asarray(values, float).ravel()
    signs = np.random.default_rng(5).choice([-1.0, 1.0], (8, array.size))
    finite = bool(np.isfinite(array).all())
    return TensorState(
        part=part,
        name=name,
        digest=crc32(array.tobytes()),
        count=array.size,
        integral=integral,
        norm=float(np.linalg.norm(array)) if finite else None,
        sketch=(signs @ array).tolist() if finite else None,
    )


def final_state(seed: int = 0, noise: float = 0.0, text: str = "", **more: Any) -> FinalState:
    """Of a net with a layer, its mean and its momentum; `more` replaces a tensor's values."""
    draw = np.random.default_rng(100 + seed)
    told: dict[str, Any] = {name: draw.normal(size=50) for name in ("weight", "mean", "momentum")}
    shaken = np.random.default_rng(int(1e6 * noise))
    told = {name: one * (1 + noise * shaken.normal(size=50)) for name, one in told.items()}
    told |= {"step": [40.0], "seen": [40], **more}
    parts = {"weight": EndPart.WEIGHTS, "mean": EndPart.BUFFERS, "seen": EndPart.BUFFERS}
    tensors = [
        tensor(parts.get(name, EndPart.OPTIMIZER), name, values, integral=name == "seen")
        for name, values in told.items()
        if name != "saved"
    ]
    return FinalState(
        {(one.part, one.name): one for one in tensors}, read_printed(text), more.get("saved", {})
    )


class Machine:
    """Trials that differ in how they end, by what was asked, and hardly in their losses."""

    def __init__(self, ends: Any) -> None:
        self._ends = ends
        self.asks: list[TrialRequest] = []
        self.final_states: dict[int, FinalState] = {}

    def __call__(self, ask: TrialRequest) -> Trial:
        self.asks.append(ask)
        number = len(self.asks)
        self.final_states[number] = self._ends(ask, number)
        noise = np.random.default_rng(ask.seed).normal(0, 0.02, ask.steps)
        losses = 1 + np.exp(-np.arange(ask.steps) / 10) + noise
        losses = losses * (1 + 1e-7 * bool(ask.perturb or "amp" in ask.fixes))
        return Trial(
            ask,
            number,
            TrialStatus.OK,
            steps=ask.steps,
            losses=tuple(losses.tolist()),
            proof=ProofRecord(rates=(0.1,) * ask.steps, grad_norms=(1.0,), ending=True),
        )

    def final_state(self, trial: Trial) -> FinalState:
        return self.final_states[trial.number]

    def prove(self, fix: str, kind: str, **more: Any) -> Any:
        return prove(self, (fix,), kind, steps=STEPS, final_states=self.final_state, **more)


EVERYTHING = (EndPart.WEIGHTS, EndPart.BUFFERS, EndPart.OPTIMIZER, EndPart.FILES, EndPart.OUTPUT)


def test_trials_that_end_alike_take_two_and_say_what_was_compared() -> None:
    machine = Machine(lambda ask, _: final_state(text="used 256", saved={"m.pt": {"data/0": 1}}))
    proof = machine.prove("pin", "exact")
    assert (proof.state, len(machine.asks), proof.ends) == ("identical", 2, EVERYTHING)
    assert not set(EVERYTHING) & {*proof.not_covered}


@pytest.mark.parametrize(
    ("changed", "part", "detail"),
    [
        ({"mean": np.ones(50)}, EndPart.BUFFERS, "mean"),
        ({"momentum": np.ones(50)}, EndPart.OPTIMIZER, "momentum"),
        ({"weight": np.ones(50)}, EndPart.WEIGHTS, "weight"),
        ({"seen": [80]}, EndPart.BUFFERS, "seen"),
        ({"text": "used 0"}, EndPart.OUTPUT, "used 0"),
        ({"saved": {"m.pt": {"data/0": 2}}}, EndPart.FILES, "m.pt"),
        ({"text": "used 256\nan otter"}, EndPart.OUTPUT, "an otter"),
        ({"text": "used 256\nan otter\nalso a heron"}, EndPart.OUTPUT, "an otter"),
    ],
)
def test_an_exact_fix_with_another_ending_is_rejected_by_name(
    changed: dict[str, Any], part: EndPart, detail: str
) -> None:
    usual: dict[str, Any] = {"text": "used 256\na badger", "saved": {"m.pt": {"data/0": 1}}}
    machine = Machine(lambda ask, _: final_state(**usual | (changed if ask.fixes else {})))
    proof = machine.prove("pin", "exact")
    assert (proof.state, len(machine.asks)) == (ProofState.DIFFERS, 3)
    because = proof.because
    assert (because.reason, because.part) == (ProofReason.OTHER_ENDING, part)
    assert because.detail == detail
    printed = {"used 0": "used 256", "an otter": "a badger"}
    assert because.other == printed.get(detail)


def test_a_line_that_a_fix_takes_away_is_named() -> None:
    lines = ["best so far\n", "epoch over\nepoch over\n"]
    machine = Machine(lambda ask, _: final_state(text="".join(lines[bool(ask.fixes) :])))
    proof = machine.prove("pin", "exact")
    assert (proof.because.detail, proof.because.other) == (None, "best so far")
    assert "it does not print “best so far” as the baseline does" in proof_sentence(proof)


@pytest.mark.parametrize(
    ("base", "again", "fixed"),
    [
        ("a badger", "an otter", "a heron"),
        ("badger found", "badger found", "badger found\nUserWarning: slow\n  load()"),
        ("UserWarning: no workers\n  load()\nover", "over", "over"),
        ("over\nstill at work", "over\nstill at work", "over\nstill at work\nstill at work"),
        ("over\ntook a minute", "over\ntook a minute", "over\ntook seconds"),
        ("over\nin 1 min", "over\nin 1 min", "over\nin 50 sec"),
        ("over at /tmp/a1/run", "over at /tmp/a2/run", "over at /tmp/a3/run"),
    ],
)
def test_words_the_baseline_changes_and_words_about_costs_are_no_difference(
    base: str, again: str, fixed: str
) -> None:
    def ends(ask: TrialRequest, number: int) -> FinalState:
        return final_state(text=fixed if ask.fixes else base if number == 1 else again)

    assert Machine(ends).prove("pin", "exact").state == "identical"


def test_words_are_not_asked_of_a_numeric_fix() -> None:
    """Rounding may turn a badger into an otter."""
    text = {True: "an otter", False: "a badger"}
    machine = Machine(lambda ask, _: final_state(ask.seed, text=text[bool(ask.fixes)]))
    assert machine.prove("amp", "numeric").state == "matches"


def test_what_the_baseline_does_not_repeat_is_left_out_after_one_more_trial() -> None:
    def ends(ask: TrialRequest, number: int) -> FinalState:
        text = f"used 256 after {1000 + number}"
        saved = {"m.pt": {"data/0": 1, "data.pkl": number}, f"{number}.npy": {"array": 1}}
        return final_state(text=text, mean=[number] * 50, saved=saved)

    machine = Machine(ends)
    proof = machine.prove("pin", "exact")
    assert (proof.state, len(machine.asks), proof.ends) == ("identical", 3, EVERYTHING)


def test_repeats_made_before_spare_that_trial() -> None:
    machine = Machine(lambda ask, number: final_state(text=f"used 256 after {1000 + number}"))
    known = [machine(TrialRequest(steps=20, proof=True)) for _ in range(2)]
    proof = machine.prove("pin", "exact", known=known)
    assert (proof.state, len(machine.asks)) == ("identical", 4)


def test_a_line_printed_more_often_is_not_compared() -> None:
    machine = Machine(lambda ask, _: final_state(text="seen 7\n" * (2 if ask.fixes else 1)))
    proof = machine.prove("pin", "exact")
    assert (proof.state, len(machine.asks)) == ("identical", 2)
    assert EndPart.OUTPUT in proof.not_covered


def test_the_first_steps_of_a_longer_trial_say_nothing_of_its_end() -> None:
    machine = Machine(lambda ask, _: final_state(mean=[float(ask.steps)] * 50))
    known = [machine(TrialRequest(steps=2 * STEPS, proof=True))]
    proof = machine.prove("pin", "exact", known=known)
    assert (proof.state, proof.ends) == ("identical", ())


def test_trials_of_an_older_journal_are_compared_by_their_losses() -> None:
    machine = Machine(lambda ask, number: final_state(mean=[number] * 50))
    trial = machine(TrialRequest(steps=STEPS))
    old = [replace(trial, proof=replace(trial.proof, ending=False))] * 2
    proof = judge_exact(old[:1], old[1:], final_states=FinalStates(machine.final_state))
    assert (proof.state, proof.ends) == ("identical", ())


def rounded(ask: TrialRequest, noise: float = 1e-3, **more: Any) -> FinalState:
    """As bfloat16 leaves it: the control and the variant each off by their own noise."""
    mine = noise if ask.perturb else 2 * noise if ask.fixes else 0.0
    return final_state(ask.seed, mine, **(more if ask.fixes else {}))


def test_rounding_alone_matches_and_is_compared() -> None:
    proof = Machine(lambda ask, _: rounded(ask)).prove("amp", "numeric")
    assert proof.state == "matches", proof.because
    assert proof.ends == (EndPart.WEIGHTS, EndPart.BUFFERS, EndPart.OPTIMIZER)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("mean", np.ones(50)),
        ("mean", [math.nan] * 50),
        ("momentum", np.zeros(50)),
        ("step", [20.0]),
        ("seen", [41]),
    ],
)
def test_a_state_beyond_rounding_is_rejected(name: str, values: Any) -> None:
    proof = Machine(lambda ask, _: rounded(ask, **{name: values})).prove("amp", "numeric")
    assert proof.state == "differs"
    assert proof.because.detail == name


@pytest.mark.parametrize(("cut", "state"), [({0}, "differs"), ({0, 1}, "matches")])
def test_seeds_whose_trials_were_cut_are_left_out_of_the_end(cut: set[int], state: str) -> None:
    machine = Machine(lambda ask, _: rounded(ask, mean=np.ones(50)))

    def trials(fixes: tuple[str, ...], perturb: str | None = None) -> list[Trial]:
        made = [machine(TrialRequest(fixes, STEPS, seed, perturb, True)) for seed in range(3)]
        return [
            replace(one, proof=replace(one.proof, ending=seed not in cut))
            for seed, one in enumerate(made)
        ]

    sides = trials(()), trials((), "bfloat16"), trials(("amp",))
    proof = judge_numeric(*sides, "bfloat16", final_states=FinalStates(machine.final_state))
    assert proof.state == state
    assert (EndPart.WEIGHTS in proof.ends) == (state == "differs")


def test_noise_that_the_control_shows_too_is_no_difference() -> None:
    """The bias before a normalisation has gradients of nothing but rounding."""
    proof = Machine(lambda ask, _: rounded(ask, noise=0.3)).prove("amp", "numeric")
    assert proof.state == "matches"


def test_what_is_nothing_but_rounding_is_held_to_the_size_of_its_kind() -> None:
    """As above, where the variant's arithmetic rounds far more than the control's does."""

    def ends(ask: TrialRequest, _: int) -> FinalState:
        noise = np.random.default_rng(ask.seed).normal(size=50) * (1e-4 if ask.fixes else 1e-8)
        tensors = [
            tensor(EndPart.OPTIMIZER, "0.bias.exp_avg", noise),
            tensor(EndPart.OPTIMIZER, "0.weight.exp_avg", np.ones(500)),
        ]
        return FinalState({(one.part, one.name): one for one in tensors})

    proof = Machine(ends).prove("amp", "numeric")
    assert (proof.state, proof.ends) == ("matches", (EndPart.OPTIMIZER,))


def test_counts_that_rounding_or_the_seed_moves_are_not_compared_and_others_are() -> None:
    def printing(counts: Any) -> Any:
        return Machine(lambda ask, _: final_state(ask.seed, text=counts(ask))).prove(
            "amp", "numeric"
        )

    moved = printing(lambda ask: f"correct {90 + ask.seed + bool(ask.fixes)}, loss 0.{ask.seed}")
    assert (moved.state, EndPart.OUTPUT in moved.not_covered) == ("matches", True)
    wrong = printing(lambda ask: "samples used 0" if ask.fixes else "samples used 256")
    assert (wrong.state, wrong.because.part) == ("differs", EndPart.OUTPUT)
    once = printing(
        lambda ask: "good 255" if ask.fixes and ask.seed == 1 else "good 256",
    )
    assert once.state == "matches"


def test_one_seed_is_not_rejected_for_its_end() -> None:
    machine = Machine(lambda ask, _: rounded(ask, mean=np.ones(50)))
    assert machine.prove("amp", "numeric", seeds=1).state == "unclear"


def test_a_numeric_fix_with_equal_bits_is_rejected_for_what_it_prints() -> None:
    machine = Machine(lambda ask, _: final_state(text="used 0" if ask.fixes else "used 256"))
    proof = machine.prove("workers=4", "numeric")
    assert (proof.state, proof.because.part, len(machine.asks)) == ("differs", "output", 3)


def test_flags_that_a_numeric_fix_sets_in_saved_optimizers_do_not_count() -> None:
    def ends(ask: TrialRequest, _: int) -> FinalState:
        return final_state(saved={"m.pt": {"data.pkl": len(ask.fixes), "data/0": 1}})

    assert Machine(ends).prove("fused_optimizer", "numeric").state == "identical"
    assert Machine(ends).prove("pin", "exact").state == "differs"


def test_no_false_alarm_over_many_tensors_of_pure_rounding() -> None:
    """Each of 300 tensors off by its own noise in every trial, the variant's three times larger."""
    draw = np.random.default_rng(11)

    def ends(ask: TrialRequest, _: int) -> FinalState:
        noise = 0.01 if ask.perturb else 0.03 if ask.fixes else 0.0
        base = np.random.default_rng(ask.seed)
        tensors = [
            tensor(EndPart.WEIGHTS, str(at), base.normal(size=30) + noise * draw.normal(size=30))
            for at in range(300)
        ]
        return FinalState({(one.part, one.name): one for one in tensors})

    machine = Machine(ends)
    trials = {
        side: [machine(TrialRequest(side, STEPS, seed, perturb, True)) for seed in range(3)]
        for side, perturb in (((), None), (("amp",), None))
    }
    checks = [machine(TrialRequest((), STEPS, seed, "float32", True)) for seed in range(3)]
    for dtype in ("float16", "tfloat32"):
        proof = judge_numeric(
            trials[()],
            checks,
            trials[("amp",)],
            dtype,
            final_states=FinalStates(machine.final_state),
        )
        assert proof.state is not ProofState.DIFFERS, proof.because
