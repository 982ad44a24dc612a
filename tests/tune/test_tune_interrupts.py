"""Ctrl-C at any moment, and what is shown meanwhile, on a recorded tune and with a fake clock."""

import re
import signal
from pathlib import Path

import pytest
from recorded_tunes import lay_out, options_of

from stepscope.cli import tune as command
from stepscope.cli.main import main
from stepscope.cli.progress import Progress
from stepscope.measure import journal
from stepscope.measure.runner import TrialRunner
from stepscope.measure.trial.record import Trial, TrialRequest
from stepscope.record.trial import TrialStatus
from stepscope.tune.tuner import Stage, TrialEvent, Tuner

LOADING = Path(__file__).parents[1] / "data" / "tunes" / "loading.zip"


@pytest.fixture
def tune(tmp_path, monkeypatch, capsys):
    """Resumes a recorded tune whose Ctrl-C comes at the first event of a stage, or as its trial
    ends: exit code, stdout and stderr."""

    def interrupted(self, request):  # what was not recorded
        raise KeyboardInterrupt

    lay_out(LOADING, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(TrialRunner, "__call__", interrupted)
    monkeypatch.setattr(journal, "_difference", lambda then, now: None)  # another machine
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    run = Tuner.run

    def resume(stage=None, ended=False, options=()):
        def run_until(tuner, listener):
            def listen(event):
                listener(event)
                if event.stage is stage and (event.trial is not None) is ended:
                    raise KeyboardInterrupt

            return run(tuner, listen)

        monkeypatch.setattr(Tuner, "run", run_until)
        words = ["tune", "--resume", "tune", "--unguarded", *options, *options_of(Path.cwd())]
        with pytest.raises(SystemExit) as caught:
            main(words)
        said = capsys.readouterr()
        return caught.value.code or 0, said.out, said.err

    return resume


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("stage", [one for one in Stage if one is not Stage.PROOF])
def test_an_interrupt_in_any_stage_ends_in_130_and_says_how_to_go_on(tune, stage, ended):
    code, out, said = tune(stage, ended)
    assert code == 130
    assert "stepscope tune --resume tune" in " ".join((out + said).replace("\\", "").split())


def test_an_interrupt_in_the_confirmation_runs_nothing_more(tune):
    _, out, said = tune(Stage.CONFIRMATION)
    assert "patched" not in said
    assert "Not confirmed on fresh trials: interrupted" in out


def test_without_an_interrupt_the_same_tune_ends_in_0(tune):
    code, out, _ = tune()
    assert code == 0
    assert "faster (95% CI" in out


def test_json_keeps_the_resume_command_off_stdout(tune):
    code, out, said = tune(Stage.CONFIRMATION, options=("--json",))
    assert code == 130
    assert out.startswith("{")
    assert "go on with: stepscope tune --resume" in said


def test_an_interrupt_without_a_result_says_how_many_trials_are_kept(tune):
    _, _, said = tune(Stage.SCOUT, ended=True)
    assert re.search(r"interrupted after \d+ trials; go on with: stepscope tune --resume", said)


def test_a_proof_alone_needs_the_tune_it_belongs_to(tune, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["tune", "--prove", "train.py"])
    assert caught.value.code == 2
    assert "name it with --resume" in capsys.readouterr().err


def test_a_proof_alone_of_a_settled_tune_runs_nothing(tune):
    tune()
    code, out, said = tune(options=("--prove",))
    assert code == 0
    assert "identical" in out
    assert all("(known)" in line for line in said.splitlines() if "baseline" in line)


def test_a_proof_alone_needs_a_tune_that_ended(tune):
    Path("tune/tune.json").write_text('{"request": {"budget_s": 90.0}}')
    code, _, said = tune(options=("--prove",))
    assert code == 2
    assert "holds no finished tune to prove" in said


class Shown(Progress):
    """Keeps what is shown."""

    def __init__(self):
        self.lines, self.label, self.left = [], "", str

    def update(self, label, done=None, total=None, left=""):
        self.label, self.left = label, left

    def line(self, text):
        self.lines.append(text)


def event(trial=None, **more):
    return TrialEvent(TrialRequest(fixes=("pin",)), trial, 30.0, 90.0, **more)


def test_time_moves_during_one_long_trial():
    display, now = Shown(), [100.0]
    shown = command._Shown(display, lambda: now[0])
    shown(event(waiting=("amp=bf16", "sdpa")))
    assert (display.label, display.left()) == ("pin", "30 s of 90 s  next: amp=bf16, sdpa")
    now[0] += 25.0
    assert display.left() == "55 s of 90 s  next: amp=bf16, sdpa"


@pytest.mark.parametrize(
    ("stage", "following"),
    [(Stage.SEARCH, "next: proof"), (Stage.PROOF, "next: confirmation"), (Stage.PATCH, "")],
)
def test_after_the_last_candidate_the_next_stage_is_named(stage, following):
    display = Shown()
    command._Shown(display, lambda: 0.0)(event(stage=stage))
    assert display.left() == f"30 s of 90 s  {following}"


def test_an_ended_search_says_once_that_the_best_is_still_confirmed():
    display = Shown()
    shown = command._Shown(display)
    trial = Trial(TrialRequest(), 7, TrialStatus.OK, step_ms=(2.0,), seconds=3.0)
    for one in (event(), event(trial), event(interrupted=True), event(interrupted=True)):
        shown(one)
    assert display.lines[0].startswith("  7  ")
    assert display.lines[1:] == [
        "     interrupted: proving and confirming the best so far; Ctrl-C again stops now"
    ]


def test_an_interrupt_that_python_dropped_comes_at_the_next_trial():
    shown = command._Shown(Shown())
    before = signal.getsignal(signal.SIGINT)
    with shown.hearing():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            shown(event())
        shown(event(interrupted=True))
    assert signal.getsignal(signal.SIGINT) is before
