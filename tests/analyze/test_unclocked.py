"""Steps of which only some were clocked: what is known of all, and what is guessed of the rest."""

import math

import numpy as np
import pytest
from rowmaking import END, MS, SETUP, START, evaluation, row, step, table

from stepscope.analyze.run.sites import read_sites
from stepscope.analyze.run.steps import assemble_steps, charge_waits, mean_host_phases
from stepscope.record.facts import SiteFact, SiteKind
from stepscope.record.kinds import HostWait
from stepscope.record.row_log import (
    CLOCKED_COLUMNS,
    FIRST_SITE_COLUMNS,
    FLAG_OCCASION,
    FLAG_UNCLOCKED,
    SITE_COLUMNS,
    RowKind,
)
from stepscope.store.json_lines import FactLog, read_facts
from stepscope.store.table import Table, read_table

PHASES = ("h2d", "forward", "backward", "optimizer", "other")


def unclocked(made):
    """The same row as it is written while the clocks are off."""
    made = dict(made)
    made["flags"] = float(FLAG_UNCLOCKED)
    made["end_ns"] = made["end_ns"]  # its phases are still in it
    return made


def hidden(rows):
    """A table whose unclocked rows have lost what is not known of them."""
    alone = (rows["flags"].astype(int) & FLAG_UNCLOCKED) > 0
    for name in CLOCKED_COLUMNS:
        rows[name][alone] = math.nan
    return rows


def occasion(made):
    return made | {"flags": float(FLAG_OCCASION)}


def series(random, count, share):
    """Steps of random phases: all clocked, and with but a share of them in blocks of eight."""
    took = {p: random.lognormal(math.log(m), 0.3, count) for p, m in zip(
        ("data_wait", *PHASES), (1.0, 0.5, 3.0, 4.0, 1.0, 0.5), strict=True)}  # fmt: skip
    full = [step(**{p: took[p][n] for p in took}, ms=0.0) for n in range(count)]
    blocks = random.random(count // 8 + 1) < share
    some = [one if blocks[n // 8] else unclocked(one) for n, one in enumerate(full)]
    return full, some


def steps_of(*rows):
    return assemble_steps(hidden(table(SETUP, *rows, END)), START)


def every(steps):
    return np.ones(len(steps), bool)


@pytest.mark.parametrize("seed", range(5))
def test_means_are_those_of_all_steps_within_the_samples_error(seed):
    full, some = series(np.random.default_rng(seed), 4000, share=0.1)
    true, found = (mean_host_phases(one, every(one)) for one in map(steps_of, (full, some)))
    for phase in ("data_wait", *PHASES):
        # 0.3 of a phase over the root of some 400 samples is 1.5% of it: three times that.
        assert found[phase] == pytest.approx(true[phase], rel=0.05), phase
    assert found["data_wait"] == pytest.approx(true["data_wait"], rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_phases_add_up_to_the_mean_step(seed):
    _, some = series(np.random.default_rng(seed), 800, share=0.15)
    steps = steps_of(some)
    phases = charge_waits(mean_host_phases(steps, every(steps)), None)
    assert sum(phases.values()) == pytest.approx(steps.mean(every(steps)) / 1e6, rel=1e-9)


def test_of_unclocked_steps_only_waits_for_data_are_told():
    steps = steps_of(step(), unclocked(step()))
    assert steps.clocked.tolist() == [True, False]
    assert steps.host["data_wait"].tolist() == [MS, MS]
    assert np.isnan([steps.host[phase][1] for phase in (*PHASES, "wait")]).all()
    assert steps.duration.tolist() == [10 * MS, 10 * MS]
    assert steps.loss.tolist() == [0.5, 0.5]


def test_rows_of_earlier_versions_are_all_clocked():
    steps = assemble_steps(table(SETUP, [step()] * 5, END), START)
    assert steps.clocked.all()
    assert steps.sampled.all()
    assert steps.weight == 1.0


def test_steps_clocked_for_a_reason_do_not_stand_for_others():
    slow_start = [occasion(step(forward=99.0, data_wait=1.0, ms=0.0))] * 4
    usual = step(forward=5.0, backward=4.0, data_wait=1.0, ms=0.0)
    steps = steps_of(slow_start, [usual] * 8, [unclocked(usual)] * 88)
    found = mean_host_phases(steps, every(steps))
    assert found["forward"] == pytest.approx((4 * 99 + 96 * 5) / 100)
    assert found["backward"] == pytest.approx(96 * 4 / 100)


def test_a_rare_delay_in_a_sampled_step_is_not_multiplied():
    usual = step(forward=5.0, backward=4.0, data_wait=1.0, ms=0.0)
    delayed = step(forward=5.0, backward=4.0, data_wait=1.0, other=500.0, ms=0.0)
    steps = steps_of([usual] * 7, delayed, [unclocked(usual)] * 92)
    found = mean_host_phases(steps, every(steps))
    assert found["other"] == pytest.approx(500 / 100)
    assert found["forward"] == pytest.approx(5.0)


def test_unclocked_delays_are_divided_as_sampled_ones_once_there_are_some():
    usual = step(forward=5.0, backward=4.0, data_wait=1.0, ms=0.0)
    delayed = step(forward=5.0, backward=4.0, other=90.0, data_wait=1.0, ms=0.0)

    def other_ms(seen):
        """Of a delayed step that was not clocked."""
        steps = steps_of(
            [usual] * 80, [delayed] * seen, [unclocked(usual)] * 300, unclocked(delayed)
        )
        found = mean_host_phases(steps, every(steps))["other"]
        return found * len(steps) - 90.0 * seen

    assert other_ms(0) == pytest.approx(0.0, abs=1e-6), "what is not known is divided as usual"
    assert other_ms(8) == pytest.approx(45.0)
    assert other_ms(24) == pytest.approx(90.0 * 24 / 32)


def test_long_waits_for_data_are_told_where_they_were_seen():
    steps = steps_of([step()] * 8, [unclocked(step(data_wait=50.0, forward=9.0, ms=0.0))] * 8)
    found = mean_host_phases(steps, every(steps))
    assert found["data_wait"] == pytest.approx((8 * 1 + 8 * 50) / 16)
    assert found["forward"] == pytest.approx(9.0)


def test_evaluations_that_only_clocked_steps_show_are_weighed_against_those():
    each = [evaluation(2.0), step()]
    steps = steps_of(each * 20, [unclocked(step(12.0))] * 200)
    assert steps.account["evaluation"] == 0.0, "they are a part of every step"
    now_and_then = [evaluation(2.0), occasion(step()), *[unclocked(step())] * 20]
    steps = steps_of([step()] * 10, now_and_then * 8)
    assert steps.account["evaluation"] == pytest.approx(16 * MS)


def test_samples_that_only_roots_count_are_those_of_clocked_steps():
    counted = {"samples": 0, "batches": 0, "data_wait": 0.0, "inputs": 32.0}
    steps = steps_of([step(**counted)] * 4, [unclocked(step(**counted))] * 6)
    assert steps.samples.tolist() == [32.0] * 10


def test_a_checkpoint_between_unclocked_steps_is_no_part_of_them():
    saved = unclocked(row(RowKind.SAVE, save=30.0))
    steps = steps_of([step()] * 4, unclocked(step()), saved, unclocked(step()))
    assert steps.account["checkpoint"] == pytest.approx(30 * MS)
    assert steps.duration.tolist() == [10 * MS] * 6


def test_waits_of_sampled_steps_stand_for_those_of_others(tmp_path):
    fact = SiteFact(id=0, kind=SiteKind.SYNC, wait=HostWait.ITEM, file="a", line=1, function="f")
    FactLog(tmp_path / "facts.jsonl").write(fact)
    cells = Table(tmp_path / "sites.npy", SITE_COLUMNS, chunk_rows=2).cells
    for index, value in enumerate([4, 8e6, 0, 3, 6e6, 24]):
        cells[index] = value
    facts = read_facts(tmp_path / "facts.jsonl")
    site = read_sites(tmp_path, facts, weight=10.0)[0]
    assert (site.count, site.total_ms, site.nbytes) == (34, 68.0, 240)


def test_counters_of_earlier_versions_are_read(tmp_path):
    fact = SiteFact(id=0, kind=SiteKind.SYNC, wait=HostWait.ITEM, file="a", line=1, function="f")
    FactLog(tmp_path / "facts.jsonl").write(fact)
    cells = Table(tmp_path / "sites.npy", FIRST_SITE_COLUMNS, chunk_rows=2).cells
    for index, value in enumerate([4, 8e6, 5]):
        cells[index] = value
    site = read_sites(tmp_path, read_facts(tmp_path / "facts.jsonl"), weight=10.0)[0]
    assert (site.count, site.total_ms, site.nbytes) == (4, 8.0, 5)
    assert read_table(tmp_path / "sites.npy").dtype.names == FIRST_SITE_COLUMNS


def test_where_no_step_was_clocked_all_but_the_waits_for_data_is_other():
    rows = [unclocked(step(data_wait=1.0, forward=3.0, ms=0.0)) for _ in range(4)]
    steps = steps_of(*rows)
    means = mean_host_phases(steps, every(steps))
    assert means["other"] == pytest.approx(steps.duration.mean() / MS - means["data_wait"])
    assert {name for name, ms in means.items() if ms} == {"data_wait", "other"}
