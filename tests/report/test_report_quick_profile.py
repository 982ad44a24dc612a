"""A quick profile: the training, the best batch size, the summary and the dashboard."""

import documents
import msgspec
import pytest
from batch_world import World
from story_reading import unpacked

import stepscope
from stepscope import quick
from stepscope.analyze.run.document import GpuTotals
from stepscope.batch.document import batch_result
from stepscope.batch.program import BatchRequest, search_program
from stepscope.launch.child import Outcome
from stepscope.launch.program import Program
from stepscope.quick import QuickProfile
from stepscope.record.errors import StepscopeError, UsageError
from stepscope.report.render.notebook.objects import BatchSizes
from stepscope.report.story.blocks import Chart, Missing, Table


@pytest.fixture(scope="module")
def searched():
    world, wanted = World(), BatchRequest()
    found = search_program(wanted, world.run, world.look, lambda size, got: None)
    program = Program("train.py", (), module=False)
    return BatchSizes(batch_result(found, wanted, program, "2026-11-15T10:00:00+00:00"))


@pytest.fixture
def made(monkeypatch, tmp_path, searched):
    """Makes a quick profile of a recorded run and a simulated search."""
    asked = {}

    def profile(arguments, folder):
        asked["profile"] = arguments
        unpacked("too_few_workers", folder.parent / "unpacked").rename(folder)

    def search(arguments, folder, *rest):
        asked["search"] = (arguments, *rest)
        return searched

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(quick, "_profile", profile)
    monkeypatch.setattr(quick, "_search", search)

    def make(**more):
        return stepscope.run_quick_profile(dataset="synthetic", **more), asked

    return make


def test_the_object_has_what_the_summary_says(made, capsys):
    profile, _ = made()
    said = capsys.readouterr().out
    assert profile.optimal_batch == profile.batch.knee > 64
    assert profile.peak_samples_per_s == max(
        row["samples_per_s"] or 0 for row in profile.batch.curve
    )
    assert f"optimal batch    {profile.optimal_batch:,}" in said
    assert f"{profile.peak_samples_per_s:,.0f} samples/s at batch" in said
    assert "GPU use          no GPU" in said
    assert profile.bottlenecks
    assert profile.bottlenecks[0] in said
    assert f"{profile.batch_table[0]['batch']:,}" in said
    assert profile.gpu_use is None


def test_the_dashboard_is_written_with_a_section_about_batch_sizes(made):
    profile, _ = made(show=False)
    assert profile.report_file.name == "report.html"
    assert 'id="batch"' in profile.report_file.read_text()
    section = profile.story.sections[1]
    assert [type(block) for block in section.blocks].count(Chart) == 2
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    assert [row[0] for row in table.rows] == [row["batch"] for row in profile.batch_table]


def test_it_trains_what_was_asked_for(made):
    _, asked = made(
        model_name="mlp", epochs=2, batch_size=32, samples=100, device="cpu", show=False
    )
    words = "--model mlp --data synthetic --batch 32 --samples 100 --test-samples 100 --device cpu"
    assert " ".join(asked["profile"]) == f"{words} --epochs 2"
    assert " ".join(asked["search"][0]).startswith(words)


def test_show_false_says_nothing(made, capsys):
    made(show=False)
    assert capsys.readouterr().out == ""


def test_a_search_that_finds_nothing_leaves_the_profile(made, monkeypatch, capsys):
    def search(*arguments):
        raise UsageError("an epoch has 8 samples only")

    monkeypatch.setattr(quick, "_search", search)
    profile, _ = made()
    assert profile.optimal_batch is None
    assert profile.problem == "an epoch has 8 samples only"
    assert profile.peak_samples_per_s == profile.run.document["steps"]["samples_per_s"]
    assert "optimal batch    an epoch has 8 samples only" in capsys.readouterr().out
    (missing,) = profile.story.sections[1].blocks
    assert isinstance(missing, Missing)


def test_gpu_use_is_the_share_of_time_it_was_busy(searched, tmp_path):
    run = stepscope.load(unpacked("too_few_workers", tmp_path))
    gpu = documents.made(GpuTotals, busy_fraction=0.87)
    run.subject.summary = msgspec.structs.replace(run.subject.summary, gpu=gpu)
    profile = QuickProfile("mlp on synthetic, batch 64", run, searched)
    assert profile.gpu_use == 0.87
    assert "GPU use          87% busy" in repr(profile)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dataset": "mnist"}, "dataset='mnist': use 'cifar10' or 'synthetic'"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"epochs": 0}, "epochs=0: must be a positive integer"),
        ({"batch_size": 1.5}, "batch_size=1.5"),
        ({"samples": -1}, "samples=-1"),
        ({"model_name": "resnet19"}, "did you mean resnet18"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=words):
        stepscope.run_quick_profile(**arguments)
    assert not list(tmp_path.iterdir())


def test_a_training_that_fails_is_told_in_its_own_words(tmp_path, monkeypatch):
    def observe(request, options):
        request.output.write_text("starting\ntrain: cifar10 is not in /data: put it there\n")
        return Outcome(2, None, False, 0, 1, 1)

    monkeypatch.setattr("stepscope.quick.observe_program", observe)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StepscopeError, match=r"^cifar10 is not in /data: put it there$"):
        stepscope.run_quick_profile(show=False)


@pytest.mark.launches
@pytest.mark.slow
def test_a_small_model_is_profiled_and_searched_for_real(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    profile = stepscope.run_quick_profile(
        "mlp", "synthetic", epochs=1, samples=640, max_batch=64, seconds=0.2, show=False
    )
    assert profile.optimal_batch == 64
    assert profile.peak_samples_per_s > 0
    assert profile.run.document["steps"]["count"] == 10
    assert profile.report_file.is_file()
