"""Stand-ins for caches: what trials find there, and what stays of what they did."""

import os
from pathlib import Path

import pytest

from stepscope.measure.isolation import cache_stand_ins, renew_stand_ins
from stepscope.measure.scratch_copy import Scratch, make_scratch


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scratch:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").touch()
    return make_scratch(tmp_path / "project", tmp_path / "tune" / "scratch")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    (folder / "hub" / "model").mkdir(parents=True)
    (folder / "token").write_text("mine")
    (folder / "hub" / "model" / "weights").write_text("weights")
    return folder


def test_caches_at_their_usual_places_have_stand_ins_too(tmp_path: Path, scratch: Scratch) -> None:
    variables, found = cache_stand_ins({}, tmp_path / "caches", scratch)
    assert variables["XDG_CACHE_HOME"] == str(tmp_path / "caches" / "xdg_cache_home")
    assert (variables["XDG_CACHE_HOME"], str(tmp_path / "home" / ".cache")) in found
    assert "HF_HOME" not in variables


def test_a_cache_in_another_is_found_there(tmp_path: Path, scratch: Scratch, cache: Path) -> None:
    environ = {"HF_HUB_CACHE": str(cache / "hub"), "HF_HOME": str(cache)}
    variables, found = cache_stand_ins(environ, tmp_path / "caches", scratch)
    assert variables["HF_HUB_CACHE"] == f"{variables['HF_HOME']}/hub"
    assert [own for _, own in found].count(str(cache)) == 1
    assert str(cache / "hub") not in [own for _, own in found]


@pytest.mark.parametrize("given", ["relative", "absolute"])
def test_a_cache_in_the_working_directory_is_that_of_the_copy(
    tmp_path: Path, scratch: Scratch, given: str
) -> None:
    place = "hf" if given == "relative" else str(tmp_path / "project" / "hf")
    variables, _ = cache_stand_ins({"HF_HOME": place}, tmp_path / "caches", scratch)
    assert (scratch.folder / variables["HF_HOME"]) == scratch.folder / "hf"


def test_trials_find_what_the_user_has(tmp_path: Path, cache: Path) -> None:
    pair = str(tmp_path / "stand-in"), str(cache)
    renew_stand_ins([pair])
    assert sorted(os.listdir(pair[0])) == ["hub", "token"]
    assert (tmp_path / "stand-in" / "hub" / "model" / "weights").read_text() == "weights"


def test_what_trials_add_stays_and_what_they_change_does_not(tmp_path: Path, cache: Path) -> None:
    copy = tmp_path / "stand-in"
    pair = str(copy), str(cache)
    renew_stand_ins([pair])
    (copy / "token").unlink()
    (copy / "token").write_text("changed")
    (copy / "hub").unlink()  # as the guard makes a folder of a link that is written into
    (copy / "hub").mkdir()
    (copy / "hub" / "downloaded").mkdir()
    (copy / "hub" / "downloaded" / "blob").write_text("new")
    (copy / "hub" / "latest").symlink_to("downloaded")
    (copy / "compiled").write_text("code")
    renew_stand_ins([pair])
    assert (copy / "token").read_text() == "mine"
    assert (copy / "hub" / "model" / "weights").read_text() == "weights"
    assert (copy / "hub" / "latest" / "blob").read_text() == "new"
    assert (copy / "compiled").read_text() == "code"
    assert sorted(os.listdir(cache)) == ["hub", "token"]


def test_what_trials_put_in_the_place_of_something_goes(tmp_path: Path, cache: Path) -> None:
    copy = tmp_path / "stand-in"
    pair = str(copy), str(cache)
    renew_stand_ins([pair])
    (copy / "token").unlink()
    (copy / "token").mkdir()
    (copy / "hub").unlink()
    (copy / "hub").write_text("a file")
    renew_stand_ins([pair])
    assert (copy / "token").read_text() == "mine"
    assert (copy / "hub" / "model").is_dir()


def test_what_the_user_has_deleted_is_gone(tmp_path: Path, cache: Path) -> None:
    copy = tmp_path / "stand-in"
    renew_stand_ins([(str(copy), str(cache))])
    (cache / "token").unlink()
    renew_stand_ins([(str(copy), str(cache))])
    assert os.listdir(copy) == ["hub"]


def test_a_cache_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    renew_stand_ins([(str(tmp_path / "stand-in"), str(tmp_path / "nowhere"))])
    assert os.listdir(tmp_path / "stand-in") == []
