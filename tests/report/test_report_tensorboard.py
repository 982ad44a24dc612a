"""A TensorBoard log, read back."""

import subprocess
import sys

import pytest
from bench_documents import document, point
from story_reading import run_subject, unpacked
from subjects import subject
from tune_documents import tuned

from stepscope.record.errors import MissingExtra
from stepscope.report.render.tensorboard_log import scalars, write_log
from stepscope.report.story.narrator import story_of


def read(path):
    """Scalars as (tag, step) → value, and the texts."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    found, texts = {}, []
    for event in LegacyEventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.HasField("simple_value"):
                found[value.tag, event.step] = value.simple_value
            else:
                texts.append(value.tensor.string_val[0].decode())
    return found, texts


def test_steps_losses_and_phases_of_a_run_are_curves(tmp_path):
    run = run_subject(unpacked("unfused_optimizer_cuda", tmp_path))
    path = write_log(run, story_of(run), tmp_path / "tb")
    found, texts = read(path)
    steps = run.tables.steps
    assert found["step/time_ms", 3] == pytest.approx(steps.done()[2] / 1e6, rel=1e-6)
    assert found["loss", 3] == pytest.approx(steps.loss[2], rel=1e-6)
    assert {"phase/backward_ms", "gpu/power_w"} <= {tag for tag, _ in found}
    assert run.document["findings"][0]["title"] in texts[0]


def test_a_tune_is_its_ladder_and_its_losses():
    found = {(one.tag, one.step): one.value for one in scalars(subject("tune", tuned()))}
    assert found["ladder/speedup_so_far", 2] == 3.0
    assert found["loss/after", 3] == 0.25


def test_a_sweep_is_a_curve_over_batch_sizes():
    whole = document(point(batch=8), point(batch=32))
    found = {(one.tag, one.step) for one in scalars(subject("bench", whole))}
    assert ("resnet18/train_cuda/none/throughput", 32) in found


def test_what_is_not_known_is_no_point():
    whole = tuned(baseline={"losses": [1.0, None]})
    found = {(one.tag, one.step) for one in scalars(subject("tune", whole))}
    assert ("loss/before", 1) in found
    assert ("loss/before", 2) not in found
    assert ("ladder/step_ms", 0) not in found


def test_the_name_of_the_file_tells_nothing_of_the_host(tmp_path):
    tune = subject("tune", tuned())
    name = write_log(tune, story_of(tune), tmp_path).name
    assert name.rpartition(".")[2] == "stepscope"


def test_torch_is_not_imported_for_it():
    code = (
        "import sys; from tensorboard.summary.writer.record_writer import RecordWriter;"
        "import stepscope.report.render.tensorboard_log; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_tensorboard_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    tune = subject("tune", tuned())
    with pytest.raises(MissingExtra, match=r"stepscope\[tensorboard\]"):
        write_log(tune, story_of(tune), tmp_path)
