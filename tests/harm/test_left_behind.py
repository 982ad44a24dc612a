"""Nothing is left open when observing ends. What a killed tune leaves in the folder for temporary
files is removed by the next one."""

import os

import torch
from fixing import fixed
from guarded import guarded
from torch.utils.data import DataLoader

from stepscope.measure import isolation


def test_temporary_folders_nobody_holds_are_removed_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(isolation, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(isolation, "_LONGEST_TEMPORARY", 1000)
    held = isolation.make_temporary()
    (held / "kept").write_text("of a tune under way")
    stale = tmp_path / "sst-stale"
    (stale / "inner").mkdir(parents=True)
    (tmp_path / "sst-file").write_text("not a folder")
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "sst-link")
    (tmp_path / "other").mkdir()
    new = isolation.make_temporary()
    left = {"sst-file", "sst-link", "elsewhere", "other", held.name, new.name}
    assert {entry.name for entry in tmp_path.iterdir()} == left
    assert (held / "kept").exists()


def test_folders_of_other_users_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(isolation, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(isolation, "_LONGEST_TEMPORARY", 1000)
    (tmp_path / "sst-theirs").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    isolation.make_temporary()
    assert (tmp_path / "sst-theirs").is_dir()


def test_observing_again_and_again_leaves_no_descriptors_open(tmp_path):
    counts = []
    for number in range(8):
        with fixed(tmp_path / str(number), "cache=1M"):
            for _ in DataLoader(torch.arange(4.0)):
                pass
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[1:] == counts[:-1]


def test_noted_writes_leave_no_descriptors_open_in_the_program(tmp_path):
    original, outside, place = (tmp_path / name for name in ("original", "outside", "place"))
    for folder in (original, outside, place):
        folder.mkdir()
    (original / "train.py").write_text(
        "import os\n"
        "first = len(os.listdir('/proc/self/fd'))\n"
        "for number in range(20):\n"
        f"    open(f'{outside}/{{number}}', 'w').close()\n"
        "print(len(os.listdir('/proc/self/fd')) - first)\n"
    )
    run = guarded(original, place, refuse=False)
    assert (run.said.strip(), len(run.outside)) == ("0", 20)
