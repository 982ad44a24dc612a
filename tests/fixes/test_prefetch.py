"""The next batch, moved early."""

import gc
import random
from contextlib import suppress
from weakref import ref

import pytest
import torch
from fixing import fixed
from meta_copies import Side, meta_copies
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stepscope.fixes.data.prefetch import BatchAhead
from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")]


class Numbers(Dataset):
    def __init__(self, count=20, transform=None, bad=None):
        self.data = torch.arange(float(count)).view(count, 1)
        self.transform = transform
        self.bad = bad

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError("bad sample")
        sample = self.data[index]
        return sample if self.transform is None else self.transform(sample), index


@pytest.fixture
def placed(tmp_path):
    """Prefetching to the meta device: the run and the side that makes the copies."""
    side = Side()
    with meta_copies(tmp_path, side) as run:
        yield run, side


def told(run):
    return run.fixes()["prefetch"]


@pytest.mark.filterwarnings("ignore:'pin_memory'")
class TestWithoutGpu:
    def test_the_programs_move_finds_the_copy_made_early(self, placed):
        run, side = placed
        got = []
        for x, y in DataLoader(Numbers(), batch_size=4):
            assert x.device.type == y.device.type == "cpu"
            assert x.to("meta").device.type == "meta"
            got.append(x)
        assert torch.equal(torch.cat(got), Numbers().data)
        assert [len(value) for value in side.taken] == [4, 4, 4, 4]  # the first shows what to do
        assert all(torch.equal(a, b) for a, b in zip(side.taken, got[1:], strict=True))
        assert told(run)["kind"] == "exact"
        assert "test_prefetch.py" in told(run)["where"][0]

    def test_a_later_epoch_and_uneven_batches(self, placed):
        _, side = placed
        loader = DataLoader(Numbers(10), batch_size=4)
        for _ in range(3):
            assert [len(x.to(torch.device("meta"))) for x, _ in loader] == [4, 4, 2]
        assert len(side.taken) == 2 + 3 + 3

    def test_the_order_of_samples_and_draws_stays(self, placed):
        def program():
            torch.manual_seed(0)
            loader = DataLoader(Numbers(), batch_size=4, shuffle=True)
            seen = []
            for _ in range(3):
                for x, _ in loader:
                    x.to("meta")
                    seen.append(x.flatten() * torch.rand(1))
            return torch.cat(seen)

        run, side = placed
        with_it = program()
        run.observer.core.inert = True
        assert torch.equal(program(), with_it)
        assert side.taken

    def test_an_error_comes_with_its_own_batch(self, placed):
        _, side = placed
        iterator = iter(DataLoader(Numbers(bad=13), batch_size=4))
        for _ in range(3):
            next(iterator)[0].to("meta")
        with pytest.raises(ValueError, match="bad sample"):
            next(iterator)
        assert side.taken

    def test_an_epoch_broken_off_is_followed_by_a_whole_one(self, placed):
        loader = DataLoader(Numbers(), batch_size=4)
        for number, (x, _) in enumerate(loader):
            x.to("meta")
            if number == 2:
                break
        assert torch.equal(torch.cat([x for x, _ in loader]), Numbers().data)

    def test_kept_workers_begin_each_epoch_anew(self, placed):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=1, persistent_workers=True)
        for stop in (2, 9, 9):
            first = None
            for number, (x, _) in enumerate(loader):
                x.to("meta")
                first = x if first is None else first
                if number == stop:
                    break
            assert torch.equal(first, Numbers().data[:4])

    def test_a_batch_the_program_changes_first_is_moved_anew(self, placed):
        _, side = placed
        for x, y in DataLoader(Numbers(), batch_size=4):
            x += 1
            x.to("meta")
            y.numpy()[0] = 5
            y.to("meta")
        assert side.made
        assert not side.taken

    def test_another_dtype_or_device_is_not_mixed_up(self, placed):
        _, side = placed
        for number, (x, _) in enumerate(DataLoader(Numbers(), batch_size=4)):
            kind = torch.half if number < 3 else torch.float64
            assert x.to("meta", kind).dtype == kind
        assert len(side.taken) == 2  # the last two were made ready as they were moved before

    def test_copies_nobody_asks_for_any_more_end(self, placed):
        _, side = placed
        for number, (x, _) in enumerate(DataLoader(Numbers(80), batch_size=4)):
            if number == 0:
                x.to("meta")
        assert len(side.made) < 8

    def test_two_loaders_at_a_time(self, placed):
        _, side = placed
        one, other = (DataLoader(Numbers(), batch_size=size) for size in (4, 5))
        for (a, _), (b, _) in zip(one, other, strict=False):
            assert len(a.to("meta")) == 4
            assert len(b.to("meta")) == 5
        assert {len(value) for value in side.taken} == {4, 5}

    def test_a_full_device_ends_it_and_loses_no_batch(self, placed):
        run, side = placed
        got = []
        for number, (x, _) in enumerate(DataLoader(Numbers(), batch_size=4)):
            side.full = number == 1
            x.to("meta")
            got.append(x)
        assert torch.equal(torch.cat(got), Numbers().data)
        assert told(run)["reasons"][0].endswith("could not be copied: out of memory")

    def test_batches_that_share_memory_are_not_fetched_ahead(self, placed):
        run, _ = placed
        buffer = torch.zeros(4, 1, pin_memory=torch.cuda.is_available())

        def collate(samples):
            return buffer.copy_(torch.stack([x for x, _ in samples]))

        got = []
        for x in DataLoader(Numbers(), batch_size=4, collate_fn=collate):
            x.to("meta")
            got.append(x.clone())
        assert torch.equal(torch.cat(got), Numbers().data)
        assert "share memory" in told(run)["reasons"][0]

    def test_random_samples_of_the_programs_process_are_told(self, placed):
        run, _ = placed
        for x, _ in DataLoader(Numbers(transform=lambda x: x + random.random()), batch_size=4):
            x.to("meta")
        assert told(run)["kind"] == "numeric"
        assert "other random draws: `random.random` at" in told(run)["where"][0]

    def test_a_stream_in_the_programs_process_is_left_alone(self, placed):
        class Stream(IterableDataset):
            def __iter__(self):
                return iter(torch.arange(8.0))

        run, side = placed
        for x in DataLoader(Stream(), batch_size=2):
            x.to("meta")
        assert not side.made
        assert "give it workers" in told(run)["reasons"][0]


def test_what_is_fetched_ahead_comes_in_order():
    source = iter([1, 2])
    ahead, prepared = BatchAhead(), []
    assert ahead.next(lambda: next(source), prepared.append) == 1
    assert prepared == [1, 2]
    assert ahead.next(lambda: next(source), prepared.append) == 2
    for _ in range(2):
        with pytest.raises(StopIteration):
            ahead.next(lambda: next(source), prepared.append)


def test_what_held_the_last_batch_leaves_no_garbage_behind():
    gc.collect()
    gc.disable()
    try:
        ahead, batches = BatchAhead(), iter([torch.ones(1)])
        held = ref(ahead)
        ahead.next(lambda: next(batches), lambda batch: None)
        del ahead
        assert held() is None
    finally:
        gc.enable()


def test_the_end_of_an_epoch_leaves_no_garbage_behind():
    def ended():
        ahead, batches = BatchAhead(), iter([torch.ones(1)])
        ahead.next(lambda: next(batches), lambda batch: None)
        with suppress(StopIteration):
            ahead.next(lambda: next(batches), lambda batch: None)
        return ref(ahead)

    gc.collect()
    gc.disable()
    try:
        assert ended()() is None
    finally:
        gc.enable()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_machine_without_a_gpu_is_told(tmp_path):
    with fixed(tmp_path, "prefetch") as run:
        pass
    assert run.fixes()["prefetch"]["reasons"] == ["no CUDA device"]


def test_its_edit_and_its_values():
    assert "record_stream" in fix_named("prefetch").edit(None, "x = x.cuda()").words
    with pytest.raises(UsageError, match="takes no value"):
        fix_named("prefetch").parse("2")


def train(workers):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(1, 64), nn.Dropout(0.3), nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    losses = []
    loader = DataLoader(Numbers(90), batch_size=8, shuffle=True, num_workers=workers)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = model(x.to("cuda")).square().mean() + y.cuda().sum() * 1e-6
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            x.zero_()
    weights = [p.detach().flatten() for p in model.parameters()]
    return torch.cat([torch.stack(losses), *weights])


class TestOnTheGpu:
    pytestmark = gpu

    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("fixes", [["prefetch"], ["prefetch", "pin"]])
    def test_losses_stay_the_same(self, tmp_path, workers, fixes):
        plain = train(workers)
        with fixed(tmp_path, *fixes) as run:
            early = train(workers)
        assert torch.equal(plain, early)
        assert run.fixes()["prefetch"]["state"] == "applied"
        assert run.fixes()["prefetch"]["kind"] == "exact"

    def test_large_batches_arrive_whole_while_the_device_is_busy(self, tmp_path):
        data = torch.arange(32.0).view(32, 1).expand(32, 1 << 20).contiguous()
        busy = torch.randn(4096, 4096, device="cuda")
        with fixed(tmp_path, "prefetch"):
            for number, x in enumerate(DataLoader(list(data), batch_size=4)):
                on_device = x.to("cuda")
                for _ in range(10):
                    busy @ busy
                expected = data[number * 4 : number * 4 + 4].cuda()
                assert torch.equal(on_device, expected)
