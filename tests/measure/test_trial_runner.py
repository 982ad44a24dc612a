"""Trials: tiny real programs, each in a process and a scratch copy of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec import convert, to_builtins
from msgspec.structs import replace

from stepscope.launch.program import Program
from stepscope.measure.journal import (
    JOURNAL_FILE,
    journal_identity,
    open_journal,
    run_journaled,
)
from stepscope.measure.runner import TrialRunner
from stepscope.measure.trial.host import host_named
from stepscope.measure.trial.record import ContestRequest, Trial, TrialRequest
from stepscope.record.errors import UsageError
from stepscope.record.facts import AutoStop

TRAINING = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((4,), index / 64), index % 2

def main(epochs):
    torch.manual_seed(7)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True)
    for epoch in range(epochs):
        for x, y in loader:
            if loader.num_workers > 2:
                raise RuntimeError("boom with workers\\nand more")
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with open("log.txt", "a") as log:
            log.write(f"{epoch} {loss.item()}\\n")
    print("the last words")

if __name__ == "__main__":
    main(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def make_runner(tmp_path_factory):
    """Makes a runner for a program in a folder of its own."""

    def make_runner(source, *arguments, **more):
        cwd = tmp_path_factory.mktemp("work")
        (cwd / "train.py").write_text(source)
        folder = cwd / ".stepscope" / "tune-x"
        folder.mkdir(parents=True)
        program = Program("train.py", arguments, module=False)
        runner = TrialRunner(program, folder, cwd, host_named(None), **more)
        return runner, cwd

    return make_runner


@pytest.fixture(scope="module")
def training(make_runner):
    """A runner of a program that trains for 48 steps, its folder and its first trial."""
    runner, cwd = make_runner(TRAINING, "3")
    runner._warm = True
    return runner, cwd, runner(TrialRequest(steps=40))


def test_a_trial_tells_the_speed_and_the_losses(training):
    _, _, trial = training
    assert trial.ok, trial.failure
    assert (trial.number, trial.steps, trial.what) == (1, 40, "training")
    assert len(trial.step_ms) >= 8
    assert trial.samples_per_step == 4
    assert len(trial.losses) == 40
    assert None not in trial.losses
    assert 0 < sum(trial.step_ms) / 1e3 < trial.seconds
    assert trial.peak_memory_bytes > 0
    assert convert(json.loads(json.dumps(to_builtins(trial))), Trial) == trial


def test_a_trial_leaves_nothing_but_its_folder(training):
    runner, cwd, _ = training
    assert sorted(p.name for p in cwd.iterdir()) == [".stepscope", "train.py"]
    runner.clear()
    assert [p.name for p in (cwd / ".stepscope/tune-x").iterdir()] == ["trials"]
    kept = runner.folder_of(1)
    assert (kept / "output.txt").read_text() == ""  # it was stopped before its last words
    assert sum(path.stat().st_size for path in kept.iterdir()) < 200_000


def test_its_folder_names_the_users_own_files(training):
    runner, cwd, _ = training
    facts = (runner.folder_of(1) / "facts.jsonl").read_text()
    assert str(cwd / "train.py") in facts
    assert "/scratch/" not in facts


def test_a_program_that_crashes_under_one_fix_only_is_a_result(training):
    runner, _, first = training
    trial = runner(TrialRequest(steps=40, fixes=("workers=3",)))
    assert (trial.status, trial.ok) == ("failed", False)
    assert trial.failure == "RuntimeError: boom with workers"
    assert trial.fixes[0].state == "applied"
    assert first.ok


@pytest.mark.slow
def test_a_proof_knows_what_happened_between_steps_and_an_unfit_fix_is_named(training):
    runner, _, first = training
    trial = runner(TrialRequest(steps=48, fixes=("pin",), proof=True))
    assert (trial.status, trial.fix) == ("not_applicable", "pin")
    assert trial.failure
    assert trial.proof.epochs == (16, 32)
    assert trial.losses[:40] == first.losses


def test_a_program_that_ends_by_itself_is_ok_with_enough_steps(make_runner):
    runner, _ = make_runner(TRAINING, "1")
    runner._warm = True
    trial = runner(TrialRequest(steps=40))
    assert trial.ok, trial.failure
    assert trial.steps == 16
    assert (runner.folder_of(1) / "output.txt").read_text() == "the last words\n"


@pytest.mark.parametrize(
    ("source", "status", "why"),
    [
        ("raise SystemExit(3)", "failed", "exit code 3"),
        ("print('no model here'); raise SystemExit(1)", "failed", "no model here"),
        ("import os; os.kill(os.getpid(), 11)", "failed", "killed by signal 11"),
        ("raise MemoryError('Unable to allocate 9 GiB')", "out_of_memory", "9 GiB"),
        ("pass", "failed", "did not import torch"),
    ],
)
def test_whatever_becomes_of_a_program_is_a_result(make_runner, source, status, why):
    runner, _ = make_runner(source)
    trial = runner(TrialRequest())
    assert trial.status == status
    assert why in trial.failure
    assert "\n" not in trial.failure
    assert trial.step_ms == ()
    assert trial.seconds > 0


def test_a_hang_ends(make_runner, monkeypatch):
    monkeypatch.setattr("stepscope.measure.runner.limit_s", lambda *_: 1.0)
    runner, _ = make_runner("import time\nwhile True: time.sleep(1)")
    trial = runner(TrialRequest())
    assert trial.status == "timed_out"
    assert trial.failure == f"no end after {trial.seconds:.0f} s"
    assert trial.seconds >= 1


def test_a_trial_far_slower_than_asked_for_ends_early(make_runner):
    runner, _ = make_runner(TRAINING, "9999")
    trial = runner(TrialRequest(steps=1_000_000, slow_ms=1e-4))
    assert (trial.status, trial.reason) == ("far_slower", "far_slower")
    assert 16 <= len(trial.step_ms) <= trial.steps < 1_000_000
    assert "ended after" in trial.failure
    assert runner(TrialRequest(steps=24, slow_ms=1e6)).ok


def test_a_trial_is_cut_off_where_the_budget_ends_and_takes_no_number(make_runner):
    runner, _ = make_runner("import time\nwhile True: time.sleep(1)")
    trial = runner(TrialRequest(limit_s=0.5))
    assert (trial.status, trial.reason) == ("timed_out", "out_of_budget")
    assert "the budget ends" in trial.failure
    assert runner(TrialRequest(limit_s=0.5)).number == trial.number


def test_a_write_outside_ends_the_tune_in_one_line(make_runner, tmp_path):
    outside = tmp_path / "outside.txt"
    source = f"try:\n    open({str(outside)!r}, 'w')\nexcept BaseException: pass"
    runner, _ = make_runner(source)
    with pytest.raises(UsageError) as caught:
        runner(TrialRequest())
    said = str(caught.value)
    assert said.startswith(f"train.py:2 would write {outside}, outside the working directory")
    assert "--allow-writes" in said
    assert not outside.exists()


def test_a_write_outside_is_allowed_where_asked_for(make_runner, tmp_path):
    outside = tmp_path / "outside.txt"
    runner, _ = make_runner(f"open({str(outside)!r}, 'w').write('x')", allow_writes=True)
    trial = runner(TrialRequest())
    assert trial.status == "failed"  # it makes no steps
    assert outside.read_text() == "x"


def test_paths_into_the_working_directory_lead_to_the_copy(make_runner):
    runner, cwd = make_runner("import sys; open(sys.argv[1], 'w'); print(sys.argv[1])")
    runner._program = Program(str(cwd / "train.py"), (str(cwd / "new.txt"),), module=False)
    runner(TrialRequest())
    said = (runner.folder_of(1) / "output.txt").read_text()
    assert "/scratch/" in said
    assert said.endswith("new.txt\n")
    assert not (cwd / "new.txt").exists()


def test_a_patch_is_applied_to_the_copy_only_and_one_that_does_not_fit_is_a_result(make_runner):
    runner, cwd = make_runner("print('before')\n")
    diff = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-print('{}')\n+print('after')\n"
    runner(TrialRequest(patched=diff.format("before")))
    assert (runner.folder_of(1) / "output.txt").read_text() == "after\n"
    assert (cwd / "train.py").read_text() == "print('before')\n"
    other = runner(TrialRequest(patched=diff.format("something else")))
    assert other.status == "failed"
    assert "train.py" in other.failure


def test_a_long_output_is_cut_to_its_end(make_runner):
    runner, _ = make_runner("print('x' * 3_000_000)\nprint('the end')\nraise SystemExit(1)")
    assert runner(TrialRequest()).failure == "the end"
    assert (runner.folder_of(1) / "output.txt").stat().st_size == 1 << 20


def test_a_full_disk_ends_the_tune_in_one_line(make_runner, monkeypatch):
    runner, _ = make_runner("pass")

    def full(*_, **__):
        raise OSError(28, "No space left on device", "place")

    monkeypatch.setattr("stepscope.measure.runner.make_scratch", full)
    with pytest.raises(UsageError, match="No space left on device place"):
        runner(TrialRequest())


def test_a_trial_that_fails_on_a_full_disk_is_no_result(make_runner, monkeypatch):
    runner, _ = make_runner("raise SystemExit(1)")

    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stepscope.measure.runner.NamedTemporaryFile", full)
    with pytest.raises(UsageError, match=r"No space left on device .*trials/0001"):
        runner(TrialRequest())


def test_being_told_to_end_is_no_trial(make_runner):
    runner, cwd = make_runner("import os, time; os.kill(os.getppid(), 2); time.sleep(60)")
    with pytest.raises(KeyboardInterrupt):
        runner(TrialRequest())
    runner.clear()
    assert [p.name for p in (cwd / ".stepscope/tune-x").iterdir()] == ["trials"]


DRIVER = """
import sys
from pathlib import Path
from stepscope.launch.program import Program
from stepscope.measure.journal import journal_identity, open_journal, run_journaled
from stepscope.measure.runner import TrialRunner
from stepscope.measure.trial.record import ContestRequest, Trial, TrialRequest
from stepscope.measure.trial.host import host_named

cwd, folder = Path(sys.argv[1]), Path(sys.argv[2])
with open_journal(folder, journal_identity({}, cwd, {}, "train.py")) as journal:
    runner = TrialRunner(Program("train.py", (), False), folder, cwd, host_named(None))
    run = run_journaled(runner, journal)
    for seed in range(3):
        run(TrialRequest(seed=seed))
"""
SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(1.0)"


def test_after_sigkill_only_the_trial_under_way_is_repeated(make_runner):
    runner, cwd = make_runner(SLEEPS)
    folder = cwd / ".stepscope/tune-x"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(cwd), str(folder)])
    under_way = folder / "trials/0002/output.txt"
    waited_for(lambda: under_way.is_file() and under_way.read_text().strip())
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    child = int(under_way.read_text())
    waited_for(lambda: not Path(f"/proc/{child}").exists())

    made = []

    def counted(ask):
        made.append(ask.seed)
        return runner(ask)

    with open_journal(folder, journal_identity({}, cwd, os.environ, "train.py")) as journal:
        runner._number = len(journal.trials)
        trials = [run_journaled(counted, journal)(TrialRequest(seed=seed)) for seed in range(3)]
    assert made == [1, 2]
    assert [trial.number for trial in trials] == [1, 2, 3]
    assert len((folder / JOURNAL_FILE).read_text().splitlines()) == 4


def waited_for(condition):
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


SEES_TORCH = """
import os, sys
early = "torch" in sys.modules
if os.path.exists("only-cold") and early:
    raise RuntimeError("torch is there already")
if os.path.exists("changes-environment"):
    os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = os.environ["HF_HOME"] = "1"  # as libraries do
import torch
print("warm" if early else "cold")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.rand(8, 4)).pow(2).mean().backward()
    optimizer.step()
"""


def _starts(runner, asks):
    """How each trial was started, by the program's own word, and the trials."""
    made = [runner(ask) for ask in asks]
    said = [(runner.folder_of(one.number) / "output.txt").read_text().split()[-1] for one in made]
    return said, made


@pytest.mark.slow
def test_trials_after_the_first_start_with_torch_imported_and_lose_nothing(make_runner):
    runner, _ = make_runner(SEES_TORCH)
    with runner:
        asks = [
            TrialRequest(steps=30),
            TrialRequest(steps=30),
            TrialRequest(steps=30, window=True),
            TrialRequest(steps=30),
        ]
        said, made = _starts(runner, asks)
    assert said == ["cold", "warm", "cold", "warm"]
    assert all(trial.ok for trial in made)
    assert len({trial.losses for trial in made}) == 1


@pytest.mark.slow
def test_a_fix_of_the_environment_starts_by_itself(make_runner):
    runner, _ = make_runner(SEES_TORCH)
    with runner:
        said, _ = _starts(
            runner, [TrialRequest(steps=30), TrialRequest(("expandable_segments",), steps=12)]
        )
    assert said == ["cold", "cold"]


@pytest.mark.slow
def test_what_is_compiled_starts_with_torch_imported_and_loses_nothing(make_runner):
    runner, _ = make_runner(SEES_TORCH)
    with runner:
        runner.forking = False
        cold, first = _starts(
            runner, [TrialRequest(steps=30), TrialRequest(("compile",), steps=30)]
        )
        runner.forking = True
        warm, again = _starts(runner, [TrialRequest(("compile",), steps=30)])
    assert (cold, warm) == (["cold", "cold"], ["warm"])
    assert all(trial.ok and trial.compile_s for trial in (first[1], *again))
    assert first[1].losses == again[0].losses


@pytest.mark.slow
def test_a_program_that_compiles_by_itself_starts_so(make_runner):
    runner, _ = make_runner(SEES_TORCH)
    with runner:
        said, made = _starts(runner, [TrialRequest(steps=30)])
        runner.baseline = replace(made[0], compile_s=3.0)
        said += _starts(runner, [TrialRequest(steps=30)])[0]
    assert said == ["cold", "cold"]


@pytest.mark.slow
def test_a_program_that_changes_its_environment_before_torch_starts_by_itself(make_runner):
    runner, cwd = make_runner(SEES_TORCH)
    (cwd / "changes-environment").touch()
    with runner:
        said, _ = _starts(runner, [TrialRequest(steps=30)] * 2)
    assert said == ["cold", "cold"]


@pytest.mark.slow
def test_a_program_that_fails_with_torch_imported_starts_by_itself(make_runner):
    runner, cwd = make_runner(SEES_TORCH)
    (cwd / "only-cold").touch()
    with runner:
        said, made = _starts(runner, [TrialRequest(steps=30)] * 2)
    assert said == ["cold", "cold"]
    assert all(trial.ok for trial in made)
    assert runner._warm is False


@pytest.mark.slow
def test_a_relative_search_path_leads_into_the_scratch_copy_also_when_forked(
    make_runner, monkeypatch
):
    source = SEES_TORCH.replace("import torch\n", "import torch, beside_it\n", 1)
    runner, cwd = make_runner(source)
    (cwd / "lib").mkdir()
    (cwd / "lib" / "beside_it.py").write_text("print('found')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ.get("PYTHONPATH", ""), "lib"]))
    with runner:
        said, made = _starts(runner, [TrialRequest(steps=30)] * 2)
    assert (said, [trial.status for trial in made]) == (["cold", "warm"], ["ok", "ok"])


SWITCHED = """
import itertools
import sys
import torch

steps = int(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for number in range(steps) if steps else itertools.count():
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
    if optimizer.param_groups[0]["fused"]:
        raise RuntimeError("fused")
"""
FOREACH, FUSED = ("foreach",), ("fused_optimizer",)


def contests_in_place(runner, *candidates, seconds=2.0):
    runner._warm = True
    asked = ContestRequest(candidates, "numeric", seconds, seconds)
    return runner(TrialRequest(steps=1_000_000, contests=asked))


def test_contests_in_place_are_told_and_say_nothing_of_speed(make_runner):
    runner, _ = make_runner(SWITCHED, "0")
    trial = contests_in_place(runner, FOREACH, ("tf32=on",))
    assert trial.ok, trial.failure
    assert trial.stopped in (AutoStop.DONE, AutoStop.OUT_OF_TIME)
    assert all(one.low <= one.ratio <= one.high for one in trial.contests)
    assert {one.name for one in trial.fixes} >= {"foreach"}
    assert (trial.step_ms, trial.losses, trial.timed) == ((), (), False)
    assert convert(json.loads(json.dumps(to_builtins(trial))), Trial).contests == trial.contests


def test_a_candidate_under_which_the_program_fails_in_place_is_named(make_runner):
    runner, _ = make_runner(SWITCHED, "0")
    trial = contests_in_place(runner, FUSED, FOREACH)
    assert (trial.status, trial.failure) == ("failed", "RuntimeError: fused")
    assert trial.trying == FUSED
    assert trial.contests == ()


def test_a_program_too_short_for_its_contests_tells_which_was_under_way(make_runner):
    runner, _ = make_runner(SWITCHED, "40")
    trial = contests_in_place(runner, FOREACH, seconds=60.0)
    assert trial.ok, trial.failure
    assert (trial.contests, trial.trying, trial.stopped) == ((), FOREACH, None)


def test_a_program_that_compiles_ends_its_contests_at_once(make_runner):
    compiles = "torch.compile(model, backend='eager')(torch.ones(1, 4))\noptimizer = "
    runner, _ = make_runner(SWITCHED.replace("optimizer = ", compiles, 1), "0")
    trial = contests_in_place(runner, FOREACH)
    assert trial.ok, trial.failure
    assert (trial.contests, trial.stopped) == ((), AutoStop.COMPILES)
    assert trial.steps < 100
