"""Runs recorded on a CPU: the calibrated replay of their window meets their unprofiled step.

Each archive holds what the model reads of a run folder (rows, facts, the data clock's tables and
the window), recorded by `benchmarks/replay.py --keep`, without paths.
"""

import json
from pathlib import Path
from zipfile import ZipFile

import pytest

from stepscope.analyze.replay import changes
from stepscope.analyze.replay.calibration import Calibration, calibration_of_run
from stepscope.analyze.replay.model import build_model, model_of_run, run_loader
from stepscope.analyze.run.records import RunRecords
from stepscope.analyze.timeline.steps import find_steps
from stepscope.record.facts import BatchFact, ConfigFact, Facts, LoaderFact, ModelConfig, Switches
from stepscope.record.row_log import STEP_PHASES
from stepscope.trace.kineto.read import read_kineto

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.zip"))


@pytest.fixture(scope="module", params=RECORDED, ids=lambda path: path.stem)
def folder(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    with ZipFile(request.param) as archive:
        archive.extractall(place)
    return place


def test_there_are_recorded_runs():
    assert len(RECORDED) >= 3


def test_the_calibrated_replay_meets_the_bare_step(folder):
    model = model_of_run(RunRecords(folder))
    clocks = calibration_of_run(RunRecords(folder))
    assert model.calibrated
    assert model.step_ms == pytest.approx(clocks.step_ms, rel=0.03)
    assert abs(model.step_ms / clocks.step_ms - 1) <= model.error


def test_without_calibration_the_replay_misses_the_bare_step(folder):
    timeline = read_kineto(folder / "window.pt.trace.json.gz", processes=1)
    clocks = calibration_of_run(RunRecords(folder))
    plain = build_model(timeline, find_steps(timeline).steps)
    assert abs(plain.step_ms / clocks.step_ms - 1) > 0.05
    assert not plain.calibrated


def test_without_its_batches_the_replay_misses_the_bare_step(folder):
    model = model_of_run(RunRecords(folder))
    clocks = calibration_of_run(RunRecords(folder))
    assert len(model.tasks.fetches) == model.tasks.steps
    lost = model.replay(changes.scale_phase("data_wait", 0.0)).step_ms
    assert lost < 0.97 * clocks.step_ms


def test_the_same_folder_gives_the_same_model(folder):
    assert model_of_run(RunRecords(folder)).unchanged == model_of_run(RunRecords(folder)).unchanged


def test_phases_add_up_to_what_the_clocks_measured(folder):
    model = model_of_run(RunRecords(folder))
    clocks = calibration_of_run(RunRecords(folder))
    for number, phase in enumerate(STEP_PHASES):
        if phase != "data_wait":
            spent = model.tasks.host.duration[model.tasks.host.phase == number].sum()
            spent /= model.tasks.steps * 1e6
            assert spent == pytest.approx(clocks.bare_ms[phase], abs=0.05 * clocks.step_ms)


def test_a_folder_without_a_window_has_no_model(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"schema": "stepscope.run/1", "run": {}}))
    assert model_of_run(RunRecords(tmp_path)) is None


CORES = 16.0


def clocks_of(**bare_ms):
    step_ms = sum(bare_ms.values())
    return Calibration(
        factors={}, uncertainty={}, bare_ms={"data_wait": 0.0} | bare_ms, window_ms={},
        step_ms=step_ms, usual_ms=step_ms, steps=100, data_wait_low_ms=0.1,
    )  # fmt: skip


def facts_of(workers, device="cuda:0"):
    loader = LoaderFact(num_workers=workers, prefetch_factor=4 if workers else None)
    config = ConfigFact(models=[ModelConfig(devices=[device])], switches=Switches(threads=8))
    return Facts([loader, config])


class Source:
    """A pipeline whose workers take so long for a batch."""

    def __init__(self, ms_per_batch, processor_share=None):
        self.ms_per_batch = ms_per_batch
        self.processor_share = processor_share


def test_without_workers_a_batch_takes_what_the_host_waits():
    loader = run_loader(facts_of(0), [], CORES, clocks_of(data_wait=5.0, forward=5.0), 1.0)
    assert (loader.batch_ms, loader.workers, loader.measured) == (5.0, 0, 0)
    assert (loader.cores, loader.host_cores) == (16.0, 1.0)


def test_on_the_cpu_the_hosts_threads_take_cores_too():
    clocks = clocks_of(data_wait=5.0, forward=5.0)
    assert run_loader(facts_of(0, "cpu"), [], CORES, clocks, 1.0).host_cores == 8.0


def test_workers_that_are_behind_explain_the_wait():
    clocks = clocks_of(data_wait=5.0, forward=5.0)
    loader = run_loader(facts_of(4), [Source(40.0)], CORES, clocks, 1.0)
    assert loader.batch_ms == 40.0
    assert loader.hand_over_ms == pytest.approx(0.1)
    assert loader.late_ms == pytest.approx(0.0)


def test_what_their_pace_does_not_explain_comes_late():
    clocks = clocks_of(data_wait=5.0, forward=5.0)
    loader = run_loader(facts_of(4), [Source(4.0)], CORES, clocks, 1.0)
    assert loader.late_ms == pytest.approx(4.9)


@pytest.mark.parametrize(("share", "works"), [(None, 1.0), (0.95, 1.0), (0.1, 0.1)])
def test_a_batch_that_is_mostly_waited_for_leaves_the_cores_alone(share, works):
    clocks = clocks_of(data_wait=5.0, forward=5.0)
    loader = run_loader(facts_of(0), [Source(5.0, share)], CORES, clocks, 1.0)
    assert loader.processor == works


def test_the_largest_batch_tells_what_has_to_be_carried():
    clocks = clocks_of(data_wait=5.0, forward=5.0)
    facts = facts_of(0)
    facts.all(BatchFact).extend([BatchFact(bytes=1_000_000), BatchFact(bytes=9_600_000)])
    assert run_loader(facts, [], CORES, clocks, 1.0).batch_mb == pytest.approx(9.6)
    assert run_loader(facts_of(0), [], CORES, clocks, 1.0).batch_mb == 0


def test_a_run_without_a_loader_has_none():
    clocks = clocks_of(data_wait=5.0, forward=5.0)
    assert run_loader(Facts(), [], CORES, clocks, 1.0) is None
    assert run_loader(facts_of(2), [], CORES, clocks, 0.0) is None
