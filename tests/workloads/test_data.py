"""Samples: the same for the same seed and index, and as expensive as asked."""

import gc
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from stepscope.record.errors import UsageError
from stepscope.workloads.arguments import parse_arguments
from stepscope.workloads.catalogue import Workload
from stepscope.workloads.data import samples
from stepscope.workloads.data.options import DataOptions, parse_data
from stepscope.workloads.data.samples import (
    InMemorySource,
    Samples,
    ToImageTensor,
    copy_to_device,
    keep_in_memory,
)
from stepscope.workloads.data.simulated_cost import DecodedSource, DelayedSource, DiskSource
from stepscope.workloads.data.synthetic import (
    SyntheticCharacters,
    SyntheticImages,
    SyntheticShapes,
    SyntheticTokens,
    class_digits,
)
from stepscope.workloads.data.tasks import make_task

MAKERS: dict[str, Callable[[str, int, int], Any]] = {
    "images": lambda split, count, seed: SyntheticImages(split, count, 12, 10, seed),
    "shapes": lambda split, count, seed: SyntheticShapes(split, count, 16, 3, seed),
    "characters": lambda split, count, seed: SyntheticCharacters(split, count, 20, 40, 3, seed),
    "tokens": lambda split, count, seed: SyntheticTokens(split, count, 9, 300, seed),
}


def same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", MAKERS)
class TestSynthetic:
    def test_a_sample_depends_on_seed_and_index_alone(self, kind: str) -> None:
        few, many = MAKERS[kind]("train", 5, 3), MAKERS[kind]("train", 2100, 3)
        for index in (4, 0, 2):
            assert same(few[index], many[index])

    def test_seeds_splits_and_indices_differ(self, kind: str) -> None:
        made = MAKERS[kind]("train", 5, 3)
        for other in (MAKERS[kind]("train", 5, 4)[1], MAKERS[kind]("test", 5, 3)[1], made[2]):
            assert not np.array_equal(made[1][0], other[0])

    def test_it_ends_where_it_should(self, kind: str) -> None:
        made = MAKERS[kind]("train", 3, 0)
        assert len(made) == len(list(made)) == 3


def test_no_two_classes_of_images_look_alike() -> None:
    looks = [class_digits(label) for label in range(1000)]
    assert len(set(looks)) == 1000
    assert all(len(set(kind)) == 10 for kind in zip(*looks[:10], strict=True))


def test_ten_classes_are_alike_often_and_further_ones_rarer() -> None:
    ten = np.bincount(SyntheticImages("train", 5000, 4, 10, 0).labels)
    assert ten.min() > 400
    thousand = np.bincount(SyntheticImages("train", 200_000, 4, 21_000, 0).labels)
    assert len(thousand) <= 1000
    assert np.count_nonzero(thousand) > 600
    assert thousand[:10].sum() > 2 * thousand[10:20].sum() > 0


@pytest.mark.parametrize("pixels", [1, 2, 7, 33])
def test_images_can_be_of_any_size(pixels: int) -> None:
    image, _ = SyntheticImages("train", 3, pixels, 10, 0)[2]
    shapes, mask = SyntheticShapes("train", 3, pixels, 5, 0)[2]
    assert image.shape == shapes.shape == (3, pixels, pixels)
    assert mask.shape == (pixels, pixels)
    assert mask.max() < 5


def test_every_class_of_shapes_is_seen() -> None:
    masks = [SyntheticShapes("train", 20, 32, 3, 0)[index][1] for index in range(20)]
    assert all(set(np.unique(mask)) <= {0, 1, 2} for mask in masks)
    assert sum({1, 2} <= set(np.unique(mask)) for mask in masks) > 15


def test_tokens_stay_below_the_vocabulary() -> None:
    tokens, following = SyntheticTokens("train", 50, 30, 50_257, 0)[7]
    assert tokens.shape == following.shape == (30,)
    assert 0 <= min(tokens) <= max(tokens) < 50_257


def test_two_thousand_samples_are_soon_made() -> None:
    before = time.process_time()
    InMemorySource(SyntheticImages("train", 2000, 32, 10, 0))
    SyntheticTokens("train", 2000, 256, 50_257, 0)
    SyntheticCharacters("train", 2000, 128, 128, 3, 0)
    assert time.process_time() - before < 1.0


def test_large_sets_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SyntheticImages("train", 10, 8, 10, 0)
    kept = keep_in_memory(source)
    assert isinstance(kept, InMemorySource)
    assert same(kept[3], source[3])
    monkeypatch.setattr(samples, "IN_MEMORY_BYTES", 10 * 3 * 8 * 8)
    assert keep_in_memory(source) is source


def small(count: int = 6, pixels: int = 8) -> SyntheticImages:
    return SyntheticImages("train", count, pixels, 10, 0)


class TestExpense:
    def test_latency_is_waited(self) -> None:
        late = DelayedSource(small(), 30)
        before = time.perf_counter()
        sample = late[2]
        assert time.perf_counter() - before >= 0.03
        assert same(sample, small()[2])

    def test_decoding_takes_about_as_long_as_asked(self) -> None:
        decoded = DecodedSource(small(), 20)
        before = time.process_time()
        sample = decoded[2]
        assert time.process_time() - before >= 0.01
        assert same(sample, small()[2])
        assert decoded.times > DecodedSource(small(), 2).times

    def test_the_disk_gives_what_was_written_no_faster_than_asked(self) -> None:
        shapes = SyntheticShapes("train", 6, 16, 3, 0)
        disk = DiskSource(shapes, mb_per_s=0.1)  # 1,024 bytes a sample: 10 ms
        before = time.monotonic()
        read = [disk[index] for index in (5, 0, 3)]
        assert time.monotonic() - before >= 3 * 0.01024 - 0.005
        assert all(same(one, shapes[index]) for one, index in zip(read, (5, 0, 3), strict=True))
        assert len(list(disk)) == len(disk) == 6

    def test_workers_share_the_disk_and_give_the_same_samples(self) -> None:
        source = small(count=20, pixels=32)
        disk = DiskSource(source, mb_per_s=1)
        bytes_read = 20 * (3 * 32 * 32 + 8)
        samples = Samples(disk, ToImageTensor(32))
        before = time.monotonic()
        batches = list(DataLoader(samples, batch_size=5, num_workers=2))
        assert time.monotonic() - before >= bytes_read / 1e6 - 0.005
        alone = list(DataLoader(Samples(source, ToImageTensor(32)), batch_size=5))
        for (images, labels), (expected, classes) in zip(batches, alone, strict=True):
            assert images.equal(expected)
            assert labels.equal(classes)

    def test_the_file_goes_with_the_samples(self) -> None:
        disk = DiskSource(small(), 100)
        path = Path(disk.path)
        copy = pickle.loads(pickle.dumps(disk))
        assert same(copy[1], disk[1])
        del copy
        gc.collect()
        assert path.is_file()
        del disk
        gc.collect()
        assert not path.exists()

    def test_a_full_disk_is_said_and_nothing_stays(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        class Full(SyntheticImages):
            def __getitem__(self, index: int) -> Any:
                if index == 3:
                    raise OSError(28, "No space left on device")
                return super().__getitem__(index)

        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with pytest.raises(UsageError, match="No space left on device"):
            DiskSource(Full("train", 6, 8, 10, 0), 1)
        assert not list(tmp_path.iterdir())

    def test_images_are_stored_at_another_size(self) -> None:
        options = DataOptions(samples=4, test_samples=1, resize=20)
        task = make_task(Workload("m", "", "segmentation", "", size=8, classes=3), options)
        assert task.train.source[0][0].shape == (3, 20, 20)
        image, mask = task.train[0]
        assert image.shape == (3, 8, 8)
        assert mask.shape == (8, 8)
        assert set(mask.unique().tolist()) <= set(np.unique(task.train.source[0][1]).tolist())

    def test_all_of_them_together(self) -> None:
        options = DataOptions(
            samples=3, test_samples=1, resize=12, decode_ms=1, latency_ms=1, disk_mb_per_s=50
        )
        workload = Workload("m", "", "images", "", size=8, classes=10)
        image, label = make_task(workload, options).train[2]
        plain = DataOptions(samples=3, test_samples=1, resize=12)
        expected, same_label = make_task(workload, plain).train[2]
        assert image.equal(expected)
        assert label == same_label


class TestResident:
    def test_it_is_the_whole_set(self) -> None:
        samples = Samples(small(count=300), ToImageTensor(8))
        inputs, targets = copy_to_device(samples, "cpu")
        assert inputs.shape == (300, 3, 8, 8)
        assert inputs[257].equal(samples[257][0])
        assert targets[299] == samples[299][1]

    def test_too_much_is_refused_with_how_much_fits(self) -> None:
        samples = Samples(small(count=300), ToImageTensor(8))
        with pytest.raises(UsageError, match=r"at most --samples 10$"):
            copy_to_device(samples, "cpu", most_bytes=10 * (3 * 8 * 8 * 4 + 8))


class TestOptions:
    def test_kind_and_place_are_read(self, tmp_path: Path) -> None:
        file = tmp_path / "a:b.tsv"
        file.touch()
        assert parse_data("synthetic") == ("synthetic", None)
        assert parse_data("cifar10") == ("cifar10", None)
        assert parse_data(f"cifar10:{tmp_path}") == ("cifar10", tmp_path)
        assert parse_data(f"images:{tmp_path}") == ("images", tmp_path)
        assert parse_data(f"characters:{file}") == ("characters", file)

    @pytest.mark.parametrize(
        "text", ["", "cifar100", "images", "images:", "synthetic:here", "characters", "cifar10:"]
    )
    def test_what_is_unknown_lists_what_is_possible(self, text: str) -> None:
        with pytest.raises(UsageError, match="use one of synthetic, resident, cifar10"):
            parse_data(text)

    @pytest.mark.parametrize("kind", ["images", "characters", "cifar10"])
    def test_a_place_must_be_there(self, kind: str, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"no f.* .*none"):
            parse_data(f"{kind}:{tmp_path}/none")

    @pytest.mark.parametrize(
        "asked",
        [
            ("--data", "cifar100"),
            ("--samples", "0"),
            ("--test-samples", "-1"),
            ("--decode-ms", "-1"),
            ("--latency-ms", "nan"),
            ("--disk-mb-s", "0"),
        ],
    )
    def test_numbers_that_make_no_sense_are_refused(self, asked: tuple[str, str]) -> None:
        with pytest.raises(UsageError, match=asked[0]):
            parse_arguments("train", "", ["--model", "mlp", *asked])

    def test_images_are_not_stored_at_any_size(self) -> None:
        with pytest.raises(UsageError, match="--resize 100000"):
            DataOptions(resize=100_000)
