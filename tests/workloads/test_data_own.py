"""Samples of the user's own: folders of images, files of labelled texts."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stepscope.record.errors import UsageError
from stepscope.workloads.catalogue import Workload
from stepscope.workloads.data.options import DataOptions
from stepscope.workloads.data.synthetic import encode_characters
from stepscope.workloads.data.tasks import make_task
from stepscope.workloads.data.user_files import CharacterFile, ImageFolder


class StandIn(np.ndarray):
    """Of Pillow's images, what is asked of them."""

    def convert(self, mode: str) -> "StandIn":
        assert mode == "RGB"
        return self

    def resize(self, size: tuple[int, int], how: Any) -> "StandIn":
        y, x = (np.arange(n) * have // n for n, have in zip(size[::-1], self.shape, strict=False))
        return self[y][:, x]

    def __enter__(self) -> "StandIn":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def open_ppm(path: str) -> StandIn:
    form, size, _, pixels = Path(path).read_bytes().split(b"\n", 3)
    if form != b"P6":
        raise OSError("cannot identify image file")
    width, height = map(int, size.split())
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3).view(StandIn)


@pytest.fixture
def pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow where it is installed, else something that reads PPM files."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        image = ModuleType("PIL.Image")
        image.open = open_ppm  # type: ignore[attr-defined]
        image.Resampling = SimpleNamespace(BILINEAR=2)  # type: ignore[attr-defined]
        image.DecompressionBombError = OverflowError  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "PIL", ModuleType("PIL"))
        monkeypatch.setitem(sys.modules, "PIL.Image", image)


def picture_folder(tmp_path: Path, **counts: int) -> Path:
    """A folder for each class, its images all of one grey level."""
    for number, (name, count) in enumerate(counts.items()):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("no image")
        for image in range(count):
            level = 10 * number + image
            content = b"P6\n6 4\n255\n" + bytes([level] * 72)
            (tmp_path / name / f"{image:03}.ppm").write_bytes(content)
    return tmp_path


@pytest.mark.usefixtures("pillow")
class TestImageFolder:
    def test_a_fifth_of_every_class_is_for_the_test(self, tmp_path: Path) -> None:
        folder = picture_folder(tmp_path, cat=10, dog=5)
        train = ImageFolder("train", None, folder, 8)
        test = ImageFolder("test", None, folder, 8)
        assert sorted(train.labels) == [0] * 8 + [1] * 4
        assert sorted(test.labels) == [0] * 2 + [1]
        assert not set(train.files) & set(test.files)
        assert train.files == ImageFolder("train", None, folder, 8).files
        assert train.files != sorted(train.files)

    def test_images_are_decoded_and_brought_to_size(self, tmp_path: Path) -> None:
        options = DataOptions(data="images", folder=picture_folder(tmp_path, cat=4, dog=4))
        task = make_task(Workload("m", "", "images", "", size=8, classes=2), options)
        image, label = task.train[0]
        assert image.shape == (3, 8, 8)
        level = int(label) * 10 + int(Path(task.train.source.files[0]).stem)
        assert image.unique().tolist() == pytest.approx([(level - 127.5) / 63.75])

    def test_the_model_needs_a_class_for_each_folder(self, tmp_path: Path) -> None:
        options = DataOptions(data="images", folder=picture_folder(tmp_path, a=2, b=2, c=2))
        with pytest.raises(UsageError, match="it has 3 classes, m 2: --classes 3"):
            make_task(Workload("m", "", "images", "", size=8, classes=2), options)

    def test_a_class_without_images_is_named(self, tmp_path: Path) -> None:
        folder = picture_folder(tmp_path, cat=3, dog=0)
        with pytest.raises(UsageError, match=r"no images .* in class folder .*dog"):
            ImageFolder("train", None, folder, 8)

    def test_a_folder_without_classes_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="has no class folders"):
            ImageFolder("train", None, tmp_path, 8)

    def test_more_than_there_are_is_refused(self, tmp_path: Path) -> None:
        folder = picture_folder(tmp_path, cat=5, dog=5)
        with pytest.raises(UsageError, match=r"--samples 9: .* has 8"):
            ImageFolder("train", 9, folder, 8)

    def test_one_image_of_each_leaves_none_for_the_test(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no samples for --test-samples"):
            ImageFolder("test", None, picture_folder(tmp_path, cat=1, dog=1), 8)

    def test_a_broken_image_is_named(self, tmp_path: Path) -> None:
        folder = picture_folder(tmp_path, cat=2, dog=2)
        images = ImageFolder("train", None, folder, 8)
        (folder / images.files[0]).write_bytes(b"this\nis\nno\nimage")
        with pytest.raises(UsageError, match=f"{images.files[0]} cannot be read as an image"):
            images[0]


def test_without_pillow_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(UsageError, match="needs Pillow: pip install pillow"):
        ImageFolder("train", None, tmp_path, 8)


class TestCharacterFile:
    def file(self, tmp_path: Path, content: str) -> Path:
        path = tmp_path / "texts.tsv"
        path.write_text(content, encoding="utf-8")
        return path

    def test_labels_become_classes_and_texts_codes(self, tmp_path: Path) -> None:
        lines = [f"{label}\t{label} says {n}" for n in range(10) for label in ("yes", "no")]
        path = self.file(tmp_path, "\n".join([*lines, "", lines[0]]))
        train, test = (CharacterFile(s, None, path, 12, 128) for s in ("train", "test"))
        assert sorted(train.labels) == [0] * 8 + [1] * 8
        assert sorted(test.labels) == [0] * 2 + [1] * 2
        for codes, label in train:
            text = "".join(chr(code + 30) for code in codes if code)
            assert text[:-1] == ("no says ", "yes says ")[label]
        assert not {bytes(c) for c, _ in train} & {bytes(c) for c, _ in test}

    def test_characters_without_a_code_are_one(self) -> None:
        assert encode_characters("a é", 5, 128).tolist() == [ord("a") - 30, 2, 1, 0, 0]
        assert encode_characters("abcdef", 3, 69).tolist() == [67, 68, 1]

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("a\tone\nb two\n", "line 2: write label<TAB>text"),
            ("a\tone\n\ttwo\n", "line 2"),
            ("a\t\n", "line 1"),
            ("a\tone\na\ttwo\n", "has 1 labels"),
            ("", "has 0 labels"),
        ],
    )
    def test_a_bad_file_is_told_with_its_line(
        self, tmp_path: Path, content: str, said: str
    ) -> None:
        with pytest.raises(UsageError, match=said):
            CharacterFile("train", None, self.file(tmp_path, content), 8, 128)

    def test_bytes_that_are_no_text_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "texts.tsv"
        path.write_bytes(b"a\t\xff\xfe\n")
        with pytest.raises(UsageError, match="is not UTF-8 text"):
            CharacterFile("train", None, path, 8, 128)

    def test_more_than_there_are_is_refused(self, tmp_path: Path) -> None:
        path = self.file(tmp_path, "".join(f"{label}\tx{n}\n" for n in range(5) for label in "ab"))
        with pytest.raises(UsageError, match=r"--test-samples 3: .* has 2"):
            CharacterFile("test", 3, path, 8, 128)
