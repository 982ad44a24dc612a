"""What is kept of how a trial ended, besides its steps."""

import os
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from stepscope.measure.trial.final_state import (
    PRINTED_FILE,
    SAVED_FILE,
    keep_final_state,
    read_final_state,
    read_saved,
)
from stepscope.record.facts import StateFact, TensorState
from stepscope.record.kinds import EndPart
from stepscope.store.json_lines import FactLog


def save_all(folder: Path, offset: float = 0.0, stamp: int = 0) -> None:
    weight = torch.arange(6.0)
    torch.save({"a": weight, "b": weight[:2] + offset, "when": stamp}, folder / "model.pt")
    save_file({"one": weight, "two": weight + offset}, folder / "model.safetensors")
    np.savez(folder / "arrays.npz", one=np.arange(3), two=np.arange(4) + offset)
    np.save(folder / "array.npy", np.arange(3) + offset)


def test_the_parts_of_files_of_torch_safetensors_and_numpy_are_told_apart(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("base", "moved", "later")]
    for folder, more in zip(folders, ({}, {"offset": 1.0}, {"stamp": 1}), strict=True):
        folder.mkdir()
        save_all(folder, **more)
    ours, theirs, stamped = (read_saved(folder, 0) for folder in folders)

    def unlike(one: dict[str, dict[str, int]]) -> set[tuple[str, str]]:
        return {(f, part) for f in ours for part in ours[f] if one[f][part] != ours[f][part]}

    assert {(f, part) for f in ours for part in ours[f]} == {
        *(("model.pt", part) for part in ("data.pkl", "data/0", "data/1")),
        *(("model.safetensors", part) for part in ("one", "two")),
        *(("arrays.npz", part) for part in ("one.npy", "two.npy")),
        ("array.npy", "array"),
    }
    assert unlike(theirs) == {
        ("model.pt", "data/1"),
        ("model.safetensors", "two"),
        ("arrays.npz", "two.npy"),
        ("array.npy", "array"),
    }
    assert unlike(stamped) == {("model.pt", "data.pkl")}


def test_the_numbers_of_text_are_told_apart_and_its_times_are_not(tmp_path: Path) -> None:
    def saved(seconds: float, used: int, lines: int = 1) -> dict[str, dict[str, int]]:
        (tmp_path / "log.csv").write_text("epoch,loss\n" + "1,0.25181\n" * lines)
        result = f'{{"samples used": {used}, "took": {seconds}}}'
        (tmp_path / "result.json").write_text(result)
        (tmp_path / "latin.txt").write_bytes(b"caf\xe9 12345")
        (tmp_path / "binary.bin").write_bytes(b"used 256 \0")
        return read_saved(tmp_path, 0)

    base = saved(0.5, 256)
    assert {*base} == {"log.csv", "result.json"}
    assert saved(0.7, 256) == base
    assert saved(0.5, 0)["result.json"].keys() == base["result.json"].keys()
    assert saved(0.5, 0)["result.json"] != base["result.json"]
    assert not saved(0.5, 256, lines=2)["log.csv"].keys() & base["log.csv"].keys()


def test_only_plain_files_written_since_the_start_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("old.npy", "new.npy", "inner/deep.npy"):
        np.save(tmp_path / name, np.arange(3))
    (tmp_path / "link.npy").symlink_to(tmp_path / "new.npy")
    os.mkfifo(tmp_path / "pipe.npy")
    os.utime(tmp_path / "old.npy", ns=(1, 1))
    assert [*read_saved(tmp_path, 2)] == ["new.npy", "inner/deep.npy"]


def test_files_that_are_not_what_they_seem_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "b.safetensors").write_bytes(b"\xff" * 64)
    (tmp_path / "c.safetensors").write_bytes((9).to_bytes(8, "little") + b"not: json")
    (tmp_path / "d.txt").write_text("words")
    (tmp_path / "e.npy").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "f.zip", "w") as archive:
        archive.writestr("entry", "content")
    assert [*read_saved(tmp_path, 0)] == ["f.zip"]


def test_an_ending_is_read_from_its_folder_and_nothing_from_an_older_one(tmp_path: Path) -> None:
    trial, scratch = tmp_path / "trial", tmp_path / "scratch"
    trial.mkdir()
    scratch.mkdir()
    (trial / "output.txt").write_text("samples used 256\n")
    np.save(scratch / "array.npy", np.arange(3))
    keep_final_state(trial, trial / "output.txt", scratch, 0)
    tensor = TensorState(
        part=EndPart.BUFFERS, name="bn.mean", digest=7, count=2, integral=False, norm=1.0
    )
    FactLog(trial / "facts.jsonl").write(StateFact(step=3, tensors=[tensor]))
    found = read_final_state(trial)
    assert found.tensors == {(EndPart.BUFFERS, "bn.mean"): tensor}
    assert found.printed.numbers == {("samples used #", 0): ("256",)}
    assert [*found.saved] == ["array.npy"]
    (trial / SAVED_FILE).write_text("[1]")
    assert not read_final_state(trial).tensors
    for name in (SAVED_FILE, PRINTED_FILE, "facts.jsonl"):
        (trial / name).unlink()
    older = read_final_state(trial)
    assert [len(one) for one in (older.tensors, older.printed.numbers, older.saved)] == [0, 0, 0]


def test_a_very_long_output_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "output.txt").write_bytes(b"x" * (1 << 20))
    keep_final_state(tmp_path, tmp_path / "output.txt", tmp_path / "none", 0)
    assert not (tmp_path / PRINTED_FILE).exists()
