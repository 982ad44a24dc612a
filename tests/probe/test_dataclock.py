"""The data clock: names what a loader's time is made of, and changes nothing it looks at."""

import gc
import os
import pickle
import random
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset
from torch.utils.data._utils import fetch, worker

from stepscope.analyze.run.data_pipeline import PipelinePart, PipelineSource, read_pipeline
from stepscope.probe.dataclock import clock as clock_module
from stepscope.probe.dataclock import points as points_module
from stepscope.probe.dataclock.clock import DataClock
from stepscope.probe.dataclock.dataset import construction_lines
from stepscope.store.json_lines import read_facts

HERE = str(Path(__file__))


def line_of(marker: str) -> int:
    """The line of this file that ends with the marker as a comment."""
    lines = Path(HERE).read_text().splitlines()
    return next(n for n, text in enumerate(lines, 1) if text.endswith(f"# {marker}"))


class Sleeper:
    def __init__(self, ms):
        self.ms = ms

    def __call__(self, x):
        time.sleep(self.ms / 1e3)
        return x


class Noise(torch.nn.Module):
    def forward(self, x):
        return x + torch.rand(()) * random.random()


class Chain:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x


class Items(Dataset):
    def __init__(self, n, transform):
        self.n = n
        self.transform = transform

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.transform(torch.full((4,), float(i)))  # called


class Reading(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        x = self.read(i)
        return x + 1

    def read(self, i):
        time.sleep(0.02)  # slow read
        return torch.tensor(i)


class Batched(Reading):
    def __getitems__(self, indices):
        time.sleep(0.003)  # slow batch
        return [torch.tensor(i) for i in indices]


class Stream(IterableDataset):
    def __iter__(self):
        for i in range(7):
            time.sleep(0.003)  # slow stream
            yield torch.tensor(i)


class Broken(Items):
    def __getitem__(self, i):
        raise LookupError(f"no item {i}")


def slow_collate(batch):
    time.sleep(0.03)  # slow collate
    return torch.stack(batch)


def planted(ms=4):
    return Chain([Noise(), Sleeper(ms)])  # constructed


@pytest.fixture
def clock(tmp_path):
    clock = DataClock(tmp_path)
    clock.install()
    yield clock
    clock.uninstall()


def only(folder: Path) -> PipelineSource:
    (source,) = read_pipeline(folder, read_facts(folder / "facts.jsonl"))
    return source


def named(source: PipelineSource, name: str) -> PipelinePart:
    (part,) = (part for part in source.parts if part.name == name)
    return part


def drain(*args, **options):
    return [batch.numpy().tobytes() for batch in DataLoader(*args, **options)]


@pytest.mark.parametrize(
    ("start", "workers"),
    [(None, 0), ("fork", 2), pytest.param("spawn", 1, marks=pytest.mark.launches)],
)
def test_planted_slow_transform_comes_first_with_its_line(clock, tmp_path, start, workers):
    options = {"num_workers": workers, "multiprocessing_context": start}
    assert len(drain(Items(24, planted()), batch_size=4, **options)) == 6
    source = only(tmp_path)
    first = source.parts[0]
    assert (first.name, first.what) == ("Sleeper", "transform")
    assert (first.file, first.line) == (HERE, line_of("constructed"))
    assert 0.5 < first.share <= 1
    assert sum(part.share for part in source.parts) == pytest.approx(1)
    assert source.processes == max(workers, 1)
    assert source.batches == 6 - source.processes
    assert source.samples == 4 * source.batches
    assert 4 <= source.ms_per_sample < 40
    assert source.dataset == "Items"


def test_slow_line_is_found_in_a_helper_of_the_dataset(clock, tmp_path):
    drain(Reading(), batch_size=2)
    first = only(tmp_path).parts[0]
    assert (first.what, first.file, first.line) == ("line", HERE, line_of("slow read"))
    assert first.share > 0.7


def test_slow_line_of_collate_is_part_of_collate(clock, tmp_path):
    drain(Reading(), batch_size=1, collate_fn=slow_collate)
    source = only(tmp_path)
    name = f"test_dataclock.py:{line_of('slow collate')}"
    assert named(source, name).share == pytest.approx(0.6, abs=0.15)
    assert source.collate_share == pytest.approx(0.6, abs=0.15)


class Spinning(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        until = time.thread_time() + 0.003
        while time.thread_time() < until:
            pass
        return torch.tensor(i)


@pytest.fixture
def scheduled(tmp_path, monkeypatch):
    """In the place of what Linux counts for a thread: no wait for a core, however busy they are."""
    file = tmp_path / "schedstat"
    file.write_text("0 0 0\n")
    monkeypatch.setattr(clock_module, "_SCHEDULED", str(file))
    return file


@pytest.mark.parametrize("workers", [0, 1])
def test_waiting_is_told_from_working(scheduled, clock, tmp_path, workers):
    drain(Spinning(), batch_size=2, num_workers=workers)
    drain(Reading(), batch_size=2, num_workers=workers)
    sources = read_pipeline(tmp_path, read_facts(tmp_path / "facts.jsonl"))
    found = {source.dataset: source for source in sources}
    assert found["Reading"].processor_share < 0.3
    spinning = found["Spinning"]
    assert spinning.processor_share * spinning.ms_per_batch >= 6


def test_waiting_for_a_core_is_no_wait_for_storage(scheduled):
    cores = clock_module._CoreClock()
    begun = cores.read()
    scheduled.write_text("3 7000000 1\n")
    assert cores.read() - begun >= 7e6
    cores.close()


def test_batched_access_is_followed(clock, tmp_path):
    drain(Batched(), batch_size=4)
    source = only(tmp_path)
    assert source.parts[0].line == line_of("slow batch")
    assert source.samples == 8


@pytest.mark.parametrize("workers", [0, 1])
def test_stream_counts_samples_of_a_short_last_batch(clock, tmp_path, workers):
    assert len(drain(Stream(), batch_size=2, num_workers=workers)) == 4
    source = only(tmp_path)
    assert (source.batches, source.samples) == (3, 5)
    assert source.parts[0].line == line_of("slow stream")


def test_batches_and_random_state_are_the_same_to_the_last_bit(tmp_path):
    def epochs(workers):
        torch.manual_seed(3)
        random.seed(3)
        loader = DataLoader(
            Items(40, planted(0)),
            batch_size=4,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        seen = [batch.numpy().tobytes() for _ in range(2) for batch in loader]
        return seen, torch.get_rng_state().tolist(), random.getstate()

    for workers in (0, 2):
        bare = epochs(workers)
        clock = DataClock(tmp_path)
        clock.install()
        observed = epochs(workers)
        clock.uninstall()
        assert observed == bare
    followed = 40 - only(tmp_path).batches
    assert followed in (3, 4)  # one in each worker, one or two in the program's process


def test_dataset_and_transforms_get_no_attributes_and_pickle_alike(clock, tmp_path):
    dataset = Items(8, planted())
    before = pickle.dumps(dataset)
    drain(dataset, batch_size=2)
    assert pickle.dumps(dataset) == before
    assert only(tmp_path).batches == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_error_of_the_dataset_arrives_unchanged(tmp_path, workers, monkeypatch):
    # torch waits this long for the workers of a loader that failed
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)

    def failure():
        try:
            drain(Broken(4, None), batch_size=2, num_workers=workers)
        except LookupError as error:
            frames = traceback.extract_tb(error.__traceback__)
            return str(error), [(frame.filename, frame.lineno) for frame in frames]
        raise AssertionError("the loader swallowed the error")

    bare = failure()
    gc.collect()  # else the workers of the next loader collect this one's iterator
    clock = DataClock(tmp_path)
    clock.install()
    assert failure() == bare
    assert clock.alive
    clock.uninstall()
    assert read_pipeline(tmp_path, read_facts(tmp_path / "facts.jsonl")) == []
    gc.collect()


def test_uninstall_puts_everything_back(tmp_path):
    def state():
        return (
            vars(fetch._MapDatasetFetcher)["fetch"],
            vars(fetch._IterableDatasetFetcher)["fetch"],
            "collate_fn" in vars(fetch._BaseDatasetFetcher),
            worker._worker_loop,
            vars(Sleeper)["__call__"],
            "__call__" in vars(Noise),
            sys.gettrace(),
        )

    before = state()
    clock = DataClock(tmp_path)
    clock.install()
    drain(Items(8, planted()), batch_size=2)
    assert state() != before
    assert Sleeper.__call__ is before[4]
    clock.uninstall()
    assert state() == before


def test_clock_that_cannot_write_leaves_the_program_alone(tmp_path):
    clock = DataClock(tmp_path / "missing")
    clock.install()
    assert len(drain(Items(8, Sleeper(0)), batch_size=2)) == 4
    assert len(drain(Items(8, Sleeper(0)), batch_size=2, num_workers=1)) == 4
    assert not clock.alive
    clock.uninstall()
    assert list(tmp_path.iterdir()) == []


def test_nested_transforms_count_once(clock, tmp_path, monkeypatch):
    passed = [0]
    for module in (clock_module, points_module):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: passed[0])
    monkeypatch.setattr(time, "sleep", lambda s: passed.__setitem__(0, passed[0] + int(s * 1e9)))

    class Outer:
        def __init__(self, inner):
            self.inner = inner

        def __call__(self, x):
            time.sleep(0.02)
            return self.inner(x)

    inner = Sleeper(40)
    dataset = Items(8, Outer(inner))
    dataset.augment = [inner]
    drain(dataset, batch_size=2)
    source = only(tmp_path)
    assert named(source, "Sleeper").share == pytest.approx(2 / 3)
    assert named(source, "Outer").share == pytest.approx(1 / 3)


LIBRARY = """
import time

def open(path):
    time.sleep(0.001)
    return JpegImageFile()

class Image:
    def convert(self, mode):
        self.load()
        return self

    def resize(self, size):
        self.load()
        time.sleep(0.006)
        return self

class ImageFile(Image):
    decoded = False

    def load(self):
        if not self.decoded:
            time.sleep(0.003)
            read_blocks(self)
        self.decoded = True

class JpegImageFile(ImageFile):
    pass

def read_blocks(image):
    time.sleep(0.001)
"""


def like_pillow():
    """Modules laid out as Pillow's are: opening reads the header, loading decodes."""
    image, image_file = ModuleType("PIL.Image"), ModuleType("PIL.ImageFile")
    for module in (image_file, image):
        path = f"/venv/site-packages/{module.__name__.replace('.', '/')}.py"
        exec(compile(LIBRARY, path, "exec"), vars(module))
    image.JpegImageFile = image_file.ImageFile
    return image


class Resized:
    def __call__(self, image):
        return image.resize((8, 8))


class Photos(Dataset):
    def __init__(self, library, lazy):
        self.library, self.lazy = library, lazy
        self.transform = Chain([Resized()])  # resized

    def __len__(self):
        return 12

    def __getitem__(self, i):
        image = self.library.open(i)  # header
        if not self.lazy:
            image = image.convert("RGB")  # decoded
        self.transform(image)
        return torch.tensor(i)


def shares_of(source: PipelineSource) -> dict[tuple[str | None, int | None], float]:
    """Of libraries' work, by kind and line."""
    return {(one.work, one.line): one.share for one in source.parts if one.what == "work"}


def test_opening_an_image_is_reading_and_loading_it_decoding(clock, tmp_path):
    drain(Photos(like_pillow(), lazy=False), batch_size=3)
    source = only(tmp_path)
    shares = shares_of(source)
    assert {("reading", line_of("header")), ("decoding", line_of("decoded"))} <= set(shares)
    assert not {("decoding", line_of("header")), ("reading", line_of("decoded"))} & set(shares)
    assert named(source, "Resized").work == "augmenting"
    assert sum(part.share for part in source.parts) == pytest.approx(1)


def test_decoding_put_off_to_a_transform_is_not_the_transforms_own(clock, tmp_path):
    drain(Photos(like_pillow(), lazy=True), batch_size=3)
    source = only(tmp_path)
    shares = shares_of(source)
    assert shares["decoding", line_of("resized")] > 0
    assert ("decoding", line_of("decoded")) not in shares
    assert named(source, "Resized").share > 0
    assert sum(part.share for part in source.parts) == pytest.approx(1)


def test_pillow_itself_is_laid_out_so(clock, tmp_path):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "photo.jpg"
    image.effect_noise((512, 512), 90).convert("RGB").save(path)
    library = SimpleNamespace(open=lambda i: image.open(path))
    drain(Photos(library, lazy=False), batch_size=3)
    works = {work for work, _ in shares_of(only(tmp_path))}
    assert works == {"reading", "decoding"}


def test_transform_of_unknown_construction_is_placed_where_it_is_called(clock, tmp_path):
    kind = type("Hidden", (Sleeper,), {})
    drain(Items(8, kind(2)), batch_size=2)
    part = named(only(tmp_path), "Hidden")
    assert (part.file, part.line) == (HERE, line_of("called"))
    assert part.share > 0.6


def test_datasets_inside_others_are_looked_into(clock, tmp_path):
    parts = [Subset(Items(6, Sleeper(2)), [0, 1, 2, 3]), Items(2, Sleeper(2))]
    drain(ConcatDataset(parts), batch_size=2)
    source = only(tmp_path)
    assert source.dataset == "Items"
    assert sum(part.share for part in source.parts if part.name == "Sleeper") > 0.6


def test_datasets_of_libraries_named_like_torch_are_followed(clock, tmp_path):
    file = f"{Path(torch.__file__).parent}vision/fake.py"
    names = {"Base": Reading}
    code = "class Fake(Base):\n  def __getitem__(self, i):\n    x = self.read(i)\n    return x\n"
    exec(compile(code, file, "exec"), names)
    drain(names["Fake"](), batch_size=4)
    source = only(tmp_path)
    assert (source.dataset, source.file, source.line) == ("Fake", file, 2)
    assert any(part.file == file for part in source.parts)


def test_calls_in_other_threads_are_not_charged(clock, tmp_path):
    class Pooled(Items):
        def __getitem__(self, i):
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(self.transform, torch.tensor(i)).result()

    drain(Pooled(8, Sleeper(2)), batch_size=2)
    assert "Sleeper" not in {part.name for part in only(tmp_path).parts}


def test_tracer_of_the_program_stays_and_lines_are_not_followed(clock, tmp_path):
    def tracer(frame, event, arg):
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        drain(Reading(), batch_size=4)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    source = only(tmp_path)
    assert source.batches == 3
    assert {part.what for part in source.parts} <= {"collate", "rest"}


def test_forked_process_counts_for_itself(clock, tmp_path):
    drain(Items(8, Sleeper(1)), batch_size=2)
    assert only(tmp_path).batches == 3
    pid = os.fork()
    if pid == 0:
        try:
            drain(Items(8, Sleeper(1)), batch_size=2)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    source = only(tmp_path)
    assert (source.processes, source.batches) == (2, 6)


def test_interrupt_that_lands_in_a_destructor_is_raised_at_the_next_fetch(clock):
    batches = iter(DataLoader(Items(8, Sleeper(0)), batch_size=2))
    next(batches)
    clock.failed_at_end(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert next(batches) is not None
    assert clock.alive


def test_fault_of_our_own_switches_the_clock_off(clock, monkeypatch):
    def fault(*args):
        raise RuntimeError("ours")

    monkeypatch.setattr("stepscope.probe.dataclock.source.FetchSource.fetched", fault)
    assert len(drain(Items(8, Sleeper(0)), batch_size=2)) == 4
    assert not clock.alive


def test_construction_is_told_only_where_it_is_certain(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "train = Compose([\n  Crop(3),\n  Flip(),\n  T.Scale(2)])\n"
        "test = Compose([Crop(3), T.Scale(2)])\n"
    )
    files = [str(program), str(tmp_path / "missing.py")]
    place = [(str(program), line) for line in range(6)]
    assert construction_lines(["Crop", "Flip", "Scale"], files) == [place[2], place[3], place[4]]
    assert construction_lines(["Crop", "Scale"], files) == [place[5], place[5]]
    assert construction_lines(["Flip", "Scale"], files) == [place[3], place[4]]
    assert construction_lines(["Scale", "Flip"], files) == [None, place[3]]


@pytest.mark.parametrize(("scheduled", "queued_ns"), [("7 5000000000 3\n", 5e9), ("?\n", 0)])
def test_waiting_for_a_core_counts_as_needing_one(tmp_path, monkeypatch, scheduled, queued_ns):
    file = tmp_path / "schedstat"
    file.write_text(scheduled)
    monkeypatch.setattr(clock_module, "_SCHEDULED", file)
    cores = clock_module._CoreClock()
    worked = time.thread_time_ns()
    assert worked <= cores.read() - queued_ns <= time.thread_time_ns()


def test_where_nothing_tells_of_waiting_for_cores_computing_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(clock_module, "_SCHEDULED", tmp_path / "none")
    worked = time.thread_time_ns()
    assert worked <= clock_module._CoreClock().read() <= time.thread_time_ns()


def test_a_thread_that_waits_for_cores_is_not_asked_by_another(tmp_path, monkeypatch):
    file = tmp_path / "schedstat"
    monkeypatch.setattr(clock_module, "_SCHEDULED", file)
    file.write_text("7 9000000000 3\n")
    cores = clock_module._CoreClock()
    cores.read()
    file.rename(tmp_path / "of the first")
    file.write_text("7 0 3\n")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(cores.read).result() < 9e9
