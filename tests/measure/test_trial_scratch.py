"""Scratch copies: what is copied, linked and left out."""

import os
import socket
import time
from pathlib import Path

import pytest

from stepscope.measure import scratch_copy
from stepscope.measure.scratch_copy import (
    make_scratch,
    path_in_scratch,
    remove_scratch,
    renew_scratch,
)
from stepscope.record.errors import UsageError


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "me" / "project"
    (folder / "package").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "package" / "__init__.py").write_text("")
    return folder


def _data(folder: Path, files: int = 2_001) -> Path:
    folder.mkdir(parents=True)
    for number in range(files):
        (folder / f"{number}.bin").touch()
    return folder


def _large(path: Path, size: int = (1 << 20) + 1) -> Path:
    with open(path, "wb") as file:
        file.truncate(size)
    return path


def test_small_files_are_copies_with_mode_and_time(project: Path, tmp_path: Path) -> None:
    script = project / "run.sh"
    script.write_text("echo\n")
    script.chmod(0o755)
    os.utime(script, ns=(10**18, 10**18))
    copy = make_scratch(project, tmp_path / "place").folder / "run.sh"
    assert not copy.is_symlink()
    assert copy.read_text() == "echo\n"
    assert copy.stat().st_mode == script.stat().st_mode
    assert copy.stat().st_mtime_ns == 10**18
    assert copy.stat().st_ino != script.stat().st_ino


def test_large_files_are_links_but_sources_never(project: Path, tmp_path: Path) -> None:
    _large(project / "weights.pt")
    (project / "long.py").write_text("#" * (1 << 21))
    folder = make_scratch(project, tmp_path / "place").folder
    assert os.readlink(folder / "weights.pt") == str(project / "weights.pt")
    assert not (folder / "long.py").is_symlink()


def test_a_data_folder_is_linked_whole(project: Path, tmp_path: Path) -> None:
    _data(project / "data" / "images")
    folder = make_scratch(project, tmp_path / "place").folder
    assert os.readlink(folder / "data") == str(project / "data")


def test_a_large_folder_with_few_files_is_linked_whole(project: Path, tmp_path: Path) -> None:
    (project / "shards").mkdir()
    _large(project / "shards" / "0.tar", 65 << 20)
    folder = make_scratch(project, tmp_path / "place").folder
    assert (folder / "shards").is_symlink()


def test_a_data_folder_beside_sources_is_linked_alone(project: Path, tmp_path: Path) -> None:
    _data(project / "data" / "images")
    (project / "data" / "prepare.py").write_text("")
    folder = make_scratch(project, tmp_path / "place").folder
    assert not (folder / "data").is_symlink()
    assert (folder / "data" / "images").is_symlink()
    assert not (folder / "data" / "prepare.py").is_symlink()


def test_folders_keep_their_modes(project: Path, tmp_path: Path) -> None:
    (project / "package").chmod(0o2775)
    folder = make_scratch(project, tmp_path / "place").folder
    assert (folder / "package").stat().st_mode == (project / "package").stat().st_mode


def test_folder_times_are_kept_so_that_the_newest_is_still_the_newest(
    project: Path, tmp_path: Path
) -> None:
    for name, when in (("a", 2 * 10**18), ("b", 10**18)):
        (project / "runs" / name).mkdir(parents=True)
        os.utime(project / "runs" / name, ns=(when, when))
    runs = make_scratch(project, tmp_path / "place").folder / "runs"
    assert max(runs.iterdir(), key=os.path.getmtime).name == "a"


def test_versions_and_environments_are_linked_and_caches_left_out(
    project: Path, tmp_path: Path
) -> None:
    for name in (".git", "env", ".stepscope", "__pycache__", "package/__pycache__"):
        (project / name).mkdir()
    (project / "env" / "pyvenv.cfg").write_text("")
    folder = make_scratch(project, tmp_path / "place").folder
    assert (folder / ".git").is_symlink()
    assert (folder / "env").is_symlink()
    assert sorted(path.name for path in folder.iterdir()) == [".git", "env", "package", "train.py"]
    assert [path.name for path in (folder / "package").iterdir()] == ["__init__.py"]


def test_links_of_the_users_own_are_kept(project: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (project / "latest").symlink_to("package")
    (project / "inside").symlink_to(project / "package")
    (project / "outside").symlink_to("../../elsewhere")
    (project / "dangling").symlink_to("nowhere")
    folder = make_scratch(project, tmp_path / "place").folder
    assert os.readlink(folder / "latest") == "package"
    assert os.readlink(folder / "inside") == str(folder / "package")
    assert os.readlink(folder / "outside") == str(elsewhere)
    assert not os.path.lexists(folder / "dangling")


def test_what_is_no_file_is_passed_over(project: Path, tmp_path: Path) -> None:
    os.mkfifo(project / "pipe")
    with socket.socket(socket.AF_UNIX) as end:
        here = os.getcwd()
        os.chdir(project)
        end.bind("socket")
        os.chdir(here)
        folder = make_scratch(project, tmp_path / "place").folder
    assert sorted(path.name for path in folder.iterdir()) == ["package", "train.py"]


def test_what_lies_beside_the_folder_is_found_through_the_copy(
    project: Path, tmp_path: Path
) -> None:
    (project.parent / "data").mkdir()
    (tmp_path / "shared.txt").write_text("here")
    folder = make_scratch(project, tmp_path / "place").folder
    assert folder.name == "project"
    assert (folder / ".." / "data").is_dir()
    assert (folder / ".." / ".." / "shared.txt").read_text() == "here"


def test_a_place_inside_the_folder_is_not_copied_into_itself(project: Path) -> None:
    (project / "out" / "tune").mkdir(parents=True)
    (project / "out" / "tune" / "old.txt").write_text("")
    folder = make_scratch(
        project, project / "out" / "tune" / "place", [project / "out" / "tune"]
    ).folder
    assert list((folder / "out").iterdir()) == []


def test_the_root_of_the_file_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="run from the program's own folder"):
        make_scratch(Path("/"), tmp_path / "place")


def test_too_many_files_are_refused_and_nothing_is_left(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch_copy, "MOST_FILES", 1)
    with pytest.raises(UsageError, match="too large to copy"):
        make_scratch(project, tmp_path / "place")
    assert not (tmp_path / "place").exists()


def test_a_place_that_cannot_be_written_is_told_in_a_line(project: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot copy .* Not a directory; name another folder"):
        make_scratch(project, tmp_path / "file" / "place")


def test_a_place_that_is_there_is_left_alone(project: Path, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="File exists"):
        make_scratch(project, tmp_path / "place")
    assert (tmp_path / "place" / "mine.txt").read_text() == "mine"


def test_a_huge_tree_is_given_up_early(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _data(project / "package" / "images", 50)
    monkeypatch.setattr(scratch_copy, "_MOST_SEEN", 20)
    with pytest.raises(UsageError, match="too large to copy"):
        make_scratch(project, tmp_path / "place")
    assert not (tmp_path / "place").exists()


def test_looking_through_data_ends_when_it_is_plain_that_it_is(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        _data(project / "data" / str(number), 20)
    monkeypatch.setattr(scratch_copy, "_ENOUGH", 50)
    monkeypatch.setattr(scratch_copy, "_MOST_SEEN", 100)
    folder = make_scratch(project, tmp_path / "place").folder
    assert (folder / "data").is_symlink()


def test_a_linked_original_that_changed_is_told(project: Path, tmp_path: Path) -> None:
    weights = _large(project / "weights.pt")
    data = _data(project / "data")
    scratch = make_scratch(project, tmp_path / "place")
    assert scratch.changed() == []
    weights.write_bytes(b"other")
    (data / "0.bin").unlink()
    assert sorted(scratch.changed()) == [str(data), str(weights)]


def test_removing_leaves_the_originals(project: Path, tmp_path: Path) -> None:
    data = _data(project / "data")
    scratch = make_scratch(project, tmp_path / "place")
    (scratch.folder / "package").chmod(0o500)
    remove_scratch(scratch.root)
    assert not scratch.root.exists()
    assert len(list(data.iterdir())) == 2_001
    remove_scratch(scratch.root)


def test_a_renewed_copy_is_like_a_new_one(project: Path, tmp_path: Path) -> None:
    data = _data(project / "data")
    _large(project / "weights.pt")
    (project / "same.txt").write_text("same")
    (project / "log.txt").write_text("old")
    (project.parent / "beside").mkdir()
    scratch = make_scratch(project, tmp_path / "place")
    folder = scratch.folder
    before = _seen(scratch.root)
    kept = (folder / "same.txt").stat().st_ino
    time.sleep(0.02)  # a clock tick of the file system: no program starts sooner
    (folder / "log.txt").write_text("new")
    os.utime(folder / "train.py")
    (folder / "package" / "__init__.py").unlink()
    (folder / "runs" / "1").mkdir(parents=True)
    (folder / "weights.pt").unlink()
    (folder / "weights.pt").write_text("mine")
    (folder / "data").unlink()
    (folder / "data").mkdir()
    (folder / "data" / "0.bin").symlink_to(data / "0.bin")
    (folder / ".." / "beside").unlink()
    (folder / "package").chmod(0o500)
    again = renew_scratch(scratch)
    assert _seen(scratch.root) == before
    assert (folder / "same.txt").stat().st_ino == kept
    assert again.changed() == []
    assert (data / "0.bin").exists()


def test_a_copy_that_is_gone_is_made_again(project: Path, tmp_path: Path) -> None:
    scratch = make_scratch(project, tmp_path / "place")
    before = _seen(scratch.root)
    remove_scratch(scratch.root)
    assert renew_scratch(scratch).folder == scratch.folder
    assert _seen(scratch.root) == before


def _seen(root: Path) -> dict[str, tuple[object, ...]]:
    """What a program can tell of a copy; of the stand-ins above it only what is in them."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        if path.is_symlink():
            found[str(path)] = (os.readlink(path),)
        elif path.is_file():
            found[str(path)] = (status.st_mode, status.st_mtime_ns, path.read_bytes())
        elif "project" in path.parts[-2:]:
            found[str(path)] = (status.st_mode, status.st_mtime_ns)
    return found


def test_paths_into_the_original_lead_to_the_copy(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = make_scratch(project, tmp_path / "place")
    assert path_in_scratch(str(project / "train.py"), scratch) == str(scratch.folder / "train.py")
    assert path_in_scratch(f"--out={project}/runs", scratch) == f"--out={scratch.folder}/runs"
    assert path_in_scratch("train.py", scratch) == "train.py"
    assert path_in_scratch("--lr=0.1", scratch) == "--lr=0.1"
    assert path_in_scratch("/usr/bin/env", scratch) == "/usr/bin/env"
    assert path_in_scratch(f"{project}-2/train.py", scratch) == f"{project}-2/train.py"
    (tmp_path / "short").symlink_to(project)
    monkeypatch.setenv("PWD", str(tmp_path / "short"))
    assert path_in_scratch(str(tmp_path / "short/train.py"), scratch) == str(
        scratch.folder / "train.py"
    )


def test_hundreds_of_small_files_are_all_there(project: Path, tmp_path: Path) -> None:
    for number in range(500):
        (project / "package" / f"{number}.txt").write_text("x" * 100)
    scratch = make_scratch(project, tmp_path / "place")
    assert len(list((scratch.folder / "package").iterdir())) == 501
