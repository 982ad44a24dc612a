"""The environment of trials."""

from pathlib import Path

import pytest

from stepscope.measure.isolation import (
    cache_environment,
    make_temporary,
    trackers_off,
    writable_folders,
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for name in ("XDG_CACHE_HOME", "HF_HOME", "MPLCONFIGDIR", "CUDA_CACHE_PATH"):
        monkeypatch.delenv(name, raising=False)
    return folder


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


def test_compiled_code_is_shared_by_the_trials_of_a_tune(home: Path, tmp_path: Path) -> None:
    found = cache_environment(tmp_path / "tmp", tmp_path / "caches")
    assert found["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path / "caches"))
    assert found["TRITON_CACHE_DIR"].startswith(str(tmp_path / "caches"))
    assert found["TMPDIR"] == str(tmp_path / "tmp")


def test_caches_in_the_home_are_used_where_they_are(home: Path, tmp_path: Path) -> None:
    (home / ".cache").mkdir()
    found = cache_environment(tmp_path / "tmp", tmp_path / "caches")
    assert "XDG_CACHE_HOME" not in found
    assert found["CUDA_CACHE_PATH"].startswith(str(tmp_path / "caches"))
    assert writable_folders((tmp_path,), tmp_path / "work") == (str(tmp_path), str(home / ".cache"))


def test_a_cache_that_holds_the_working_directory_is_not_allowed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "disk" / "project"
    work.mkdir(parents=True)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "disk"))
    monkeypatch.setenv("TORCH_HOME", str(home))
    assert writable_folders((), work) == ()
