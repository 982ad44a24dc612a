"""Phase clocks that are on in some steps only: really off in between, and nothing is lost."""

import functools
import os
from collections import Counter
from statistics import fmean

import numpy as np
import pytest
import torch
from clocked_program import MS, START, US, USUAL, SlowSGD, Stepper, observed
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_hooks
from torch.utils.data._utils import fetch

import stepscope
from stepscope.analyze.run.steps import assemble_steps
from stepscope.analyze.run.totals import wall_time_by_category
from stepscope.probe.step_rule import FIRST_STEPS
from stepscope.record.facts import EndFact, OverheadFact, ProcessFact
from stepscope.record.row_log import (
    CLOCKED_COLUMNS,
    FLAG_OCCASION,
    FLAG_UNCLOCKED,
    RowKind,
)
from stepscope.record.run import RunInfo
from stepscope.store.json_lines import read_facts
from stepscope.store.table import read_table


def rows_of(run):
    return read_table(run.folder / "rows.npy")


def steps_of(run):
    return assemble_steps(rows_of(run), START)


def facts_of(run):
    return read_facts(run.folder / "facts.jsonl")


def flagged(run, flag):
    rows = rows_of(run)
    return (rows["flags"].astype(int) & flag) > 0


def test_the_first_steps_are_all_clocked_and_then_most_are_not(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch) as run:
        run.program.run(3000)
    steps = steps_of(run)
    assert len(steps) == 3000
    assert steps.clocked[:FIRST_STEPS].all()
    assert 0.005 < steps.clocked[FIRST_STEPS:].mean() < 0.2
    assert steps.sampled[FIRST_STEPS:].any()


def test_between_blocks_what_only_clocks_need_is_the_programs_own(tmp_path, monkeypatch):
    places = [
        (torch.autograd, "grad"), (torch.nn.utils, "clip_grad_norm_"), (Optimizer, "zero_grad"),
        (fetch._MapDatasetFetcher, "fetch"), (fetch._BaseDatasetFetcher, "collate_fn"),
        (torch.nn.Module, "__call__"),
    ]  # fmt: skip
    before = [vars(owner).get(name) for owner, name in places]
    with observed(tmp_path, monkeypatch) as run:
        net = type(run.program.net)
        run.program.run(10)
        assert "__call__" in vars(net)
        run.until(off=True)
        assert [vars(owner).get(name) for owner, name in places] == before
        assert "__call__" not in vars(net)
        assert not optimizer_hooks._global_optimizer_pre_hooks
        assert len(optimizer_hooks._global_optimizer_post_hooks) == 1
        run.until(off=False)
        assert "__call__" in vars(net)
        assert vars(Optimizer)["zero_grad"] is not before[2]
        assert len(optimizer_hooks._global_optimizer_pre_hooks) == 1
        run.until(off=True)
    assert [vars(owner).get(name) for owner, name in places] == before
    assert not optimizer_hooks._global_optimizer_post_hooks
    assert "__call__" not in vars(net)


def test_steps_that_are_not_clocked_keep_end_wait_loss_and_samples(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch) as run:
        run.program.run(500)
    rows = rows_of(run)
    alone = flagged(run, FLAG_UNCLOCKED)
    assert alone.sum() > 300
    for name in CLOCKED_COLUMNS:
        assert np.isnan(rows[name][alone]).all()
    assert (rows["samples"][alone] == 4).all()
    assert (rows["batches"][alone] == 1).all()
    assert (rows["backwards"][alone] == 1).all()
    assert np.isfinite(rows["loss"][alone]).all()
    assert rows["data_wait_ns"][alone] == pytest.approx(USUAL["data"], rel=0.1)
    assert not np.isnan([rows[name][~alone] for name in CLOCKED_COLUMNS]).any()


def test_the_account_adds_up_to_the_whole_run(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch, epoch=70) as run:
        run.program.run(1000)
    rows, steps = rows_of(run), steps_of(run)
    info = RunInfo(exit_code=0, started_ns=START, ended_ns=int(rows["end_ns"].max()))
    facts = facts_of(run)
    facts.last(ProcessFact).booted_ns = START
    account = wall_time_by_category(info, facts, steps, 100, rows)
    assert sum(account.values()) == pytest.approx((info.ended_ns - START) / 1e9, rel=1e-9)
    use = np.arange(len(steps)) >= 100
    assert sum(steps.host_means(use).values()) == pytest.approx(steps.mean(use), rel=1e-9)


def test_means_of_few_clocked_steps_are_those_of_all(tmp_path, monkeypatch):
    random = np.random.default_rng(5)
    draws = random.lognormal(0, 0.4, (20_100, len(USUAL)))
    places = {phase: place for place, phase in enumerate(USUAL)}
    with observed(tmp_path, monkeypatch, look_ns=300, overhead=0.0005) as run:
        run.program.run(100)
        before = dict(run.program.took)
        run.program.take = lambda phase, step: int(USUAL[phase] * draws[step, places[phase]])
        run.program.run(20_000)
    steps = steps_of(run)
    use = np.arange(len(steps)) >= 100
    found = steps.host_means(use)
    shares = {"data": "data_wait"} | {phase: phase for phase in USUAL if phase != "data"}
    sampled = (steps.sampled & use).sum()
    assert 100 < sampled < 3000
    error = 3 * 0.42 / np.sqrt(sampled)  # of lognormal phases
    for phase, name in shares.items():
        true = (run.program.took[phase] - before[phase]) / 20_000
        assert found[name] == pytest.approx(true, abs=error * true + 10 * 300), name


@pytest.mark.parametrize("budget", [0.002, 0.01])
def test_dear_clocks_keep_to_the_budget(tmp_path, monkeypatch, budget):
    with observed(tmp_path, monkeypatch, look_ns=10 * US, overhead=budget) as run:
        run.program.run(200)
        spent, began = run.clock.spent, run.clock.now
        run.program.run(20_000)
        share = (run.clock.spent - spent) / (run.clock.now - began - run.clock.spent + spent)
    assert share < budget
    found = facts_of(run).last(OverheadFact)
    assert found.budget == budget
    assert found.clocked_steps + found.unclocked_steps == 20_200


def test_the_cost_is_measured_in_the_program_itself(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch, look_ns=10 * US, overhead=0.05) as run:
        looks = []
        run.program.run(60)
        for _ in range(4):
            spent = run.clock.spent
            run.program.step()
            looks.append(run.clock.spent - spent)
        run.program.run(20_000)
    found = facts_of(run).last(OverheadFact)
    assert found.measured_pairs >= 10
    assert found.clocked_ns == pytest.approx(fmean(looks), rel=0.2)


def test_cheap_clocks_stay_on_in_every_step(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch, look_ns=50, unclocked_look_ns=50) as run:
        run.program.run(1000)
    assert steps_of(run).clocked.all()


def test_without_a_budget_every_step_is_clocked(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch, look_ns=50 * US, overhead=None) as run:
        run.program.run(300)
    assert steps_of(run).clocked.all()
    assert not flagged(run, FLAG_OCCASION).any()
    assert facts_of(run).last(OverheadFact) is None


def test_blocks_fall_in_with_no_rhythm(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch, overhead=0.02) as run:
        run.program.run(6000)
    starts = np.flatnonzero(np.diff(steps_of(run).sampled.astype(int)) == 1)
    gaps = np.diff(starts[1:])
    assert len(gaps) > 10
    assert len(set(gaps.tolist())) > len(gaps) / 2


def evaluate(run, batches, announced):
    program = run.program
    if announced:
        program.net.eval()
    with torch.no_grad():
        for _ in range(batches):
            program.net(torch.ones(4, 2))
    program.net.train()


def test_an_evaluation_in_an_unclocked_stretch_is_seen_whole(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch) as run:
        run.program.run(200)
        run.until(off=True)
        before = run.program.took["forward"]
        evaluate(run, batches=7, announced=True)
        took = run.program.took["forward"] - before
        assert not run.off
        run.program.run(50)
    steps = steps_of(run)
    assert (rows_of(run)["kind"] == RowKind.EVAL).sum() == 7
    assert steps.account["evaluation"] == pytest.approx(took, rel=0.1)
    assert steps.duration.max() < 2.5 * MS


def test_another_loader_turns_the_clocks_on_and_that_of_the_steps_does_not(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch, epoch=40) as run:
        run.until(off=True)
        run.program.run(90)  # over two epochs' starts
        blocks = flagged(run, FLAG_OCCASION).sum()
        assert (rows_of(run)["kind"] == RowKind.EPOCH).sum() >= 3
        other = torch.utils.data.DataLoader([torch.ones(2)] * 8, batch_size=4)
        run.until(off=True)
        with torch.no_grad():
            for x in other:
                run.program.net(x)
        assert not run.off
        run.program.run(3)
    assert flagged(run, FLAG_OCCASION).sum() > blocks
    assert (rows_of(run)["kind"] == RowKind.EVAL).sum() == 2


def test_evaluations_that_nothing_foretells_keep_the_clocks_on(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch) as run:
        for _ in range(30):
            run.program.run(10)
            evaluate(run, batches=1, announced=False)
    assert steps_of(run).clocked.all()
    assert (rows_of(run)["kind"] == RowKind.EVAL).sum() == 30


def test_calls_without_gradients_in_every_step_are_a_part_of_it(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch) as run:
        run.program.each = lambda: evaluate(run, batches=1, announced=True)
        run.program.run(600)
    steps = steps_of(run)
    assert not steps.clocked[FIRST_STEPS + 20 :].all()
    assert steps.account.get("evaluation", 0.0) == 0.0
    assert steps.duration[FIRST_STEPS:] == pytest.approx(1.4 * MS, rel=0.1)


def test_a_frozen_part_set_to_eval_in_every_step_foretells_nothing(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch) as run:
        frozen = torch.nn.Linear(2, 2)
        run.program.each = frozen.eval
        run.program.run(600)
    assert steps_of(run).clocked.mean() < 0.4


def test_with_a_fix_every_step_is_clocked(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch, look_ns=50 * US, fixes=("pin",)) as run:
        run.program.run(200)
    assert steps_of(run).clocked.all()


def test_the_program_ends_after_the_very_step_it_was_asked_to(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch, steps=777) as run, pytest.raises(SystemExit):
        run.program.run(1000)
    assert facts_of(run).last(EndFact).steps == 777
    assert len(steps_of(run)) == 777


def test_a_window_asked_for_late_lies_in_clocked_steps(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch, window=2, stacks=0, window_at=400) as run:
        run.program.run(600)
    steps = steps_of(run)
    recorded = np.flatnonzero(steps.in_window)
    assert recorded[0] + 1 == 400
    assert steps.clocked[recorded[0] - 10 : recorded[-1] + 10].all()
    assert not steps.clocked[100:350].all()
    assert not steps.clocked[recorded[-1] + 30 :].all()


def test_a_patch_the_program_puts_over_ours_stays_and_works(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch) as run:
        run.program.run(20)
        net, calls = type(run.program.net), Counter()
        ours = net.__call__

        def theirs(self, *args, **kwargs):
            calls["theirs"] += 1
            return ours(self, *args, **kwargs)

        net.__call__ = theirs
        run.until(off=True)
        run.until(off=False)
        run.until(off=True)
        assert vars(net)["__call__"] is theirs
        assert calls["theirs"] == run.program.steps - 20
    assert vars(net)["__call__"] is theirs
    steps = steps_of(run)
    assert steps.host["forward"][steps.clocked].min() >= USUAL["forward"]
    assert not steps.clocked.all()
    del net.__call__


def test_a_patch_made_while_the_clocks_are_off_stays_and_no_block_follows(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch) as run:
        run.until(off=True)
        original = Optimizer.zero_grad

        @functools.wraps(original)
        def theirs(self, *args, **kwargs):
            return original(self, *args, **kwargs)

        Optimizer.zero_grad = theirs
        try:
            run.until(off=False)
            clocked = run.program.steps
            run.program.run(3000)
            assert Optimizer.zero_grad is theirs
        finally:
            run.observer.end()
            assert Optimizer.zero_grad is theirs
            Optimizer.zero_grad = original
    steps = steps_of(run)
    assert not steps.clocked[clocked:].any(), "phases without one of their clocks are not known"
    assert len(steps) == run.program.steps


def test_optimizers_inside_each_other_keep_the_clocks_on(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch) as run:
        torch.optim.SGD(run.program.net.parameters(), lr=0.1)  # from now on its steps have hooks
        run.program.optimizer = SlowSGD(run.program.net.parameters(), lr=0.1)
        run.program.optimizer.program = run.program
        run.program.run(300)
    assert len(steps_of(run)) == 300
    assert steps_of(run).clocked.all()


def test_two_optimizers_are_told_apart_in_unclocked_steps(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch) as run:
        other = Stepper(run.program, [torch.nn.Parameter(torch.ones(1))])
        run.program.each = other.step
        run.program.run(1000)
    steps = steps_of(run)
    assert steps.by_optimizer == {0: 1000, 1: 1000}
    assert len(steps) == 1000
    assert not steps.clocked.all()


def test_an_optimizer_made_in_an_unclocked_stretch_is_seen(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch) as run:
        run.until(off=True)
        at = run.program.steps
        run.program.optimizer = Stepper(run.program, run.program.net.parameters())
        assert not run.off
        run.program.run(500)
    steps = steps_of(run)
    assert steps.by_optimizer == {0: at, 1: 500}
    assert len(steps) == run.program.steps


def test_steps_the_program_marks_are_counted_so(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch) as run:
        run.program.each = lambda: stepscope.step() if run.program.steps % 2 == 0 else None
        run.program.run(1000)
    steps = steps_of(run)
    assert len(steps) == 500
    assert not steps.clocked.all()
    assert facts_of(run).last(EndFact).steps == 500


def test_steps_that_a_loss_scaler_leaves_out_count(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch) as run:
        scaler = torch.amp.GradScaler("cpu")
        run.program.run(100)
        run.until(off=True)
        at, program = run.program.steps, run.program
        for number in range(20):
            loss = program.net(torch.ones(4, 2)).mean() * (float("inf") if number % 2 else 1.0)
            program.optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(program.optimizer)
            scaler.update()
    assert facts_of(run).last(EndFact).steps == at + 20


def test_a_forked_child_notes_nothing(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch) as run:
        run.until(off=True)
        size = (tmp_path / "rows.npy").read_bytes()
        child = os.fork()
        if not child:
            try:
                run.observer.forked()
                run.program.run(400)
                same = (tmp_path / "rows.npy").read_bytes() == size
                os._exit(0 if same and not run.observer.core.log.events else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        run.program.run(10)


def test_a_fault_of_ours_in_an_unclocked_step_ends_observing_only(tmp_path, monkeypatch):
    with observed(tmp_path, monkeypatch) as run:
        run.until(off=True)
        monkeypatch.setattr(run.observer.core, "unclocked_step", lambda code: 1 / 0)
        run.program.run(3000)
        assert run.observer.core.log.off
        assert len(run.observer.core.log.events) < 10
        assert run.program.steps > 3000
