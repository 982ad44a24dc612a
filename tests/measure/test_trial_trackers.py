"""The environment of trials."""

import os
from pathlib import Path

import pytest

from stepscope.measure.isolation import isolated, make_temporary, trackers_off, writable_folders
from stepscope.measure.scratch_copy import make_scratch
from stepscope.record.probe_options import Wall


def test_trackers_send_nothing_and_keep_theirs_apart(tmp_path: Path) -> None:
    found = trackers_off(tmp_path)
    assert found["WANDB_MODE"] == "disabled"
    assert found["MLFLOW_TRACKING_URI"] == (tmp_path / "mlflow").as_uri()
    assert found["CLEARML_OFFLINE_MODE"] == "1"


def test_sockets_fit_into_the_temporary_folder() -> None:
    folder = make_temporary()
    assert len(f"{folder}/pymp-12345678/listener-12345678") < 108
    folder.rmdir()


def test_a_long_temporary_folder_of_the_users_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "stepscope.measure.isolation.gettempdir", lambda: str(tmp_path / ("x" * 80))
    )
    folder = make_temporary()
    assert folder.parent == Path("/tmp")
    folder.rmdir()


def test_compiled_code_is_shared_by_the_trials_of_a_tune(tmp_path: Path) -> None:
    work, tune, trial, tmp = (tmp_path / name for name in ("work", "tune", "trial", "tmp"))
    for folder in (work, tune, trial, tmp):
        folder.mkdir()
    scratch = make_scratch(work, tune / "scratch")
    with isolated(tune, trial, tmp, scratch, True, Wall.NONE) as (variables, guard):
        assert variables["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tune / "caches"))
        assert variables["TRITON_CACHE_DIR"].startswith(str(tune / "caches"))
        assert variables["TMPDIR"] == str(tmp)
        ours = {str(folder) for folder in (trial, tmp, tune / "caches", tune / "scratch")}
        assert ours == set(guard.allowed)


def test_pipes_of_a_service_for_several_processes_may_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "mps"))
    (tmp_path / "mps").mkdir()
    assert writable_folders(()) == ()
    os.mkfifo(tmp_path / "mps" / "control")
    assert writable_folders(()) == (str(tmp_path / "mps"),)
