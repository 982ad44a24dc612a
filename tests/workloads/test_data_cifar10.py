"""CIFAR-10: its own files, checked before they are read, fetched where they are not there."""

import hashlib
import io
import pickle
import struct
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from stepscope.record.errors import UsageError
from stepscope.workloads.catalogue import Workload
from stepscope.workloads.data import cifar10
from stepscope.workloads.data import cifar10 as fetch
from stepscope.workloads.data.cifar10 import Cifar10, Unpickler
from stepscope.workloads.data.options import DataOptions
from stepscope.workloads.data.tasks import make_task


class OldPickler(pickle._Pickler):  # type: ignore[name-defined,misc]
    """Writes as Python 2 did, which wrote CIFAR-10: texts and bytes are one thing."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_old(self, text: Any) -> None:
        content = text if isinstance(text, bytes) else text.encode("latin1")
        self.write(b"T" + struct.pack("<i", len(content)) + content)
        self.memoize(text)

    dispatch[str] = dispatch[bytes] = save_old


def old_pickle(document: Any) -> bytes:
    file = io.BytesIO()
    OldPickler(file, 2).dump(document)
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Small files in the form of the real ones, known by their checksums."""
    monkeypatch.setattr(cifar10, "_BATCH", 4)
    made = {}
    for number, name in enumerate(fetch.FILES):
        pixels = np.random.default_rng(number).integers(0, 256, (4, 3072), dtype=np.uint8)
        labels = [number, 9, 0, 1]
        made[name] = old_pickle({"data": pixels, "labels": labels, "batch_label": "some"})
        monkeypatch.setitem(fetch.FILES, name, hashlib.md5(made[name]).hexdigest())
    return made


@pytest.fixture
def archive(batches: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The archive of them, on a server that is a folder; there is something else in it too."""
    path = tmp_path / "server" / fetch.ARCHIVE
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {**batches, "../../outside": b"no"}.items():
            member = tarfile.TarInfo(f"{fetch.INSIDE}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    monkeypatch.setattr(fetch, "ARCHIVE_MD5", hashlib.md5(path.read_bytes()).hexdigest())
    monkeypatch.setattr(fetch, "URL", path.as_uri())
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    return path


def write(folder: Path, batches: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, content in batches.items():
        (folder / name).write_bytes(content)
    return folder


class TestCifar10:
    @pytest.mark.parametrize("inside", [".", fetch.INSIDE])
    def test_the_files_of_a_folder_are_read(
        self, batches: dict[str, bytes], tmp_path: Path, inside: str
    ) -> None:
        write(tmp_path / fetch.INSIDE, batches)
        folder = tmp_path if inside == fetch.INSIDE else tmp_path / fetch.INSIDE
        train = Cifar10("train", None, folder)
        assert len(train) == 20
        assert [train[index][1] for index in (0, 4, 8)] == [0, 1, 2]
        assert train[5][0].shape == (3, 32, 32)
        pixels = np.random.default_rng(1).integers(0, 256, (4, 3072), dtype=np.uint8)
        assert np.array_equal(train[5][0].ravel(), pixels[1])
        assert Cifar10("test", 2, folder)[0][1] == 5

    def test_only_files_that_are_needed_are_read(
        self, batches: dict[str, bytes], tmp_path: Path
    ) -> None:
        folder = write(tmp_path / "files", {**batches, "data_batch_3": b"broken"})
        assert len(Cifar10("train", 8, folder)) == 8
        with pytest.raises(UsageError, match=r"data_batch_3 is corrupt"):
            Cifar10("train", 9, folder)

    def test_it_is_resized_for_models_of_another_size(
        self, batches: dict[str, bytes], tmp_path: Path
    ) -> None:
        folder = write(tmp_path / "files", batches)
        options = DataOptions(data="cifar10", folder=folder)
        workload = Workload("m", "", "images", "")
        image, label = make_task(replace(workload, size=48, classes=10), options).train[0]
        assert image.shape == (3, 48, 48)
        assert label.dtype == torch.int64
        with pytest.raises(UsageError, match="--classes 10"):
            make_task(replace(workload, size=48, classes=3), options)

    def test_more_than_there_are_is_refused_before_anything_is_fetched(self) -> None:
        with pytest.raises(UsageError, match="--samples 60000: cifar10 has 50000"):
            Cifar10("train", 60_000, None)

    def test_a_folder_that_is_not_there_is_not_made(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no folder"):
            Cifar10("train", None, tmp_path / "none")

    def test_the_archive_is_unpacked_and_nothing_else_of_it(
        self, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fetch, "URL", "http://127.0.0.1:9/none")
        assert len(Cifar10("train", None, archive.parent)) == 20
        unpacked = archive.parent / fetch.INSIDE
        assert {path.name for path in unpacked.iterdir()} == set(fetch.FILES)
        assert not list(tmp_path.rglob("outside"))

    def test_a_wrong_archive_is_not_opened(self, archive: Path) -> None:
        archive.write_bytes(b"something else")
        with pytest.raises(UsageError, match=r"MD5 .* delete it and retry"):
            Cifar10("train", None, archive.parent)

    def test_it_is_fetched_once(
        self, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert len(Cifar10("train", None, None)) == 20
        assert "fetching" in capsys.readouterr().err
        archive.unlink()
        assert len(Cifar10("test", None, None)) == 4
        assert (tmp_path / "cache" / "cifar10" / fetch.INSIDE / "test_batch").is_file()

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (("URL", "http://127.0.0.1:9/none"), "refused"),
            (("_LARGEST_ARCHIVE", 10), "larger than"),
            (("ARCHIVE_MD5", "0" * 32), "has MD5"),
            (("_LONGEST_S", -1.0), "took longer"),
        ],
    )
    def test_where_it_cannot_be_fetched_it_says_what_to_put_where(
        self,
        archive: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        change: tuple[str, Any],
        said: str,
    ) -> None:
        monkeypatch.setattr(fetch, *change)
        with pytest.raises(UsageError, match=said) as told:
            Cifar10("train", None, None)
        folder = tmp_path / "cache" / "cifar10"
        assert f"put {fetch.ARCHIVE} from {fetch.URL} there" in str(told.value)
        assert str(folder) in str(told.value)
        assert "\n" not in str(told.value)
        assert not list(folder.iterdir())

    def test_nothing_but_arrays_comes_out_of_a_pickle(self) -> None:
        class Evil:
            def __reduce__(self) -> Any:
                return (exec, ("raise SystemExit",))

        with pytest.raises(pickle.UnpicklingError, match="does not belong in a CIFAR-10 file"):
            Unpickler(io.BytesIO(pickle.dumps(Evil()))).load()
