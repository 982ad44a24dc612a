"""What a killed tune leaves in the folder for temporary files is removed by the next one."""

import os

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
