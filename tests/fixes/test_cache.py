"""Samples kept in memory."""

import os

import pytest
import torch
from fixing import fixed
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

from stepscope.fixes.data import cache
from stepscope.fixes.data.cache import (
    copied_sample,
    free_bytes,
    parse_size,
    sample_bytes,
)
from stepscope.fixes.registry import fix_named, parse_fixes
from stepscope.record.errors import UsageError

MADE = os.memfd_create("made")
"""Samples made, a byte each: a file that no source names, so that the dataset keeps no state."""


def made():
    return list(os.pread(MADE, 1000, 0))


def scaled(sample, factor=1.0):
    return sample * factor


class Numbers(Dataset):
    """Notes elsewhere which samples it makes."""

    def __init__(self, transform=scaled):
        self.data = torch.arange(24.0).view(12, 2)
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        os.write(MADE, bytes([index]))
        return {"x": self.transform(self.data[index]), "name": str(index)}


@pytest.fixture(autouse=True)
def _nothing_made():
    os.ftruncate(MADE, 0)
    os.lseek(MADE, 0, os.SEEK_SET)


def train(loader):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    losses = []
    for _ in range(3):
        for batch in loader:
            optimizer.zero_grad()
            loss = model(batch["x"]).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            batch["x"].zero_()
    return torch.cat([torch.stack(losses), *(p.detach().flatten() for p in model.parameters())])


def test_each_sample_is_made_once_and_losses_stay_the_same(tmp_path):
    plain = train(DataLoader(Numbers(), batch_size=5, shuffle=True))
    assert len(made()) == 36
    os.ftruncate(MADE, 0)
    os.lseek(MADE, 0, os.SEEK_SET)
    with fixed(tmp_path, "cache=1M") as run:
        kept = train(DataLoader(Numbers(), batch_size=5, shuffle=True))
    assert torch.equal(plain, kept)
    assert sorted(made()) == list(range(12))
    fact = run.fixes()["cache"]
    assert fact["kind"] == "exact"
    assert "up to 1.0 MiB" in fact["where"][0]
    assert "test_cache.py" in fact["where"][0]


def test_the_dataset_stays_the_programs_own(tmp_path):
    with fixed(tmp_path, "cache"):
        data = ConcatDataset([Subset(Numbers(), [1, 2]), Numbers()])
        loader = DataLoader(data, batch_size=4)
        first = [batch["name"] for batch in loader]
        assert [batch["name"] for batch in loader] == first
        assert loader.dataset is data
        assert len(made()) == 14


def test_a_collate_function_may_change_what_it_gets(tmp_path):
    def collate(samples):
        for sample in samples:
            sample["x"] += 1
            sample.pop("name")
        return torch.stack([sample["x"] for sample in samples])

    with fixed(tmp_path, "cache"):
        loader = DataLoader(Numbers(torch.clone), batch_size=12, collate_fn=collate)
        epochs = [next(iter(loader)) for _ in range(3)]
    assert all(torch.equal(epoch, Numbers().data + 1) for epoch in epochs)


def test_samples_handed_out_one_by_one_may_be_changed(tmp_path):
    with fixed(tmp_path, "cache"):
        loader = DataLoader(Numbers(), batch_size=None)
        for _ in range(3):
            for index, sample in enumerate(loader):
                assert torch.equal(sample["x"], Numbers().data[index])
                sample["x"].zero_()
    assert len(made()) == 12


def test_a_dataset_the_program_changes_is_made_anew(tmp_path):
    with fixed(tmp_path, "cache"):
        data = Numbers()
        loader = DataLoader(Subset(data, range(4)), batch_size=4)
        next(iter(loader))
        data.transform = lambda sample: sample + 1
        assert torch.equal(next(iter(loader))["x"], data.data[:4] + 1)
        data.data.mul_(2)
        assert torch.equal(next(iter(loader))["x"], data.data[:4] + 1)


def test_it_stops_at_its_limit_and_says_so(tmp_path):
    with fixed(tmp_path, "cache=1K") as run:
        loader = DataLoader(Numbers(), batch_size=5)
        epochs = [torch.cat([batch["x"] for batch in loader]) for _ in range(3)]
    assert all(torch.equal(epoch, Numbers().data) for epoch in epochs)
    assert 12 < len(made()) < 36
    assert " of 12 samples of the DataLoader at " in run.fixes()["cache"]["where"][1]
    assert run.fixes()["cache"]["where"][1].endswith("fit into 1.0 KiB")


class Batched(Numbers):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def test_datasets_that_make_many_at_once_and_samples_drawn_twice_work(tmp_path):
    with fixed(tmp_path, "cache"):
        loader = DataLoader(Batched(), batch_sampler=[[3, 3, 1], [1, 2, 3, 2]])
        for _ in range(2):
            assert [batch["name"] for batch in loader] == [list("331"), list("1232")]
    assert made() == [3, 3, 1, 2, 2]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


@pytest.mark.parametrize(
    ("data", "arguments", "why"),
    [
        (Numbers(lambda x: x * torch.rand(1)), {}, "other random draws: `torch.rand` at"),
        (TensorDataset(torch.arange(4)), {}, "is already in memory"),
        (Stream(), {}, "have no index"),
        (Numbers(), {"num_workers": 1}, "has workers, which would each keep"),
    ],
)
def test_what_it_cannot_serve_is_told(tmp_path, data, arguments, why):
    with fixed(tmp_path, "cache") as run:
        list(DataLoader(data, batch_size=2, **arguments))
    assert run.fixes()["cache"]["state"] == "not applicable"
    assert why in run.fixes()["cache"]["reasons"][0]


class Stubborn:
    def __deepcopy__(self, memo):
        raise TypeError("no")


def test_samples_that_cannot_be_copied_are_handed_on(tmp_path):
    with fixed(tmp_path, "cache") as run:
        data = [Stubborn()]
        assert next(iter(DataLoader(data, collate_fn=list))) == data
    assert "cannot be copied" in run.fixes()["cache"]["reasons"][0]


def test_where_free_memory_is_not_known_it_asks_for_a_size(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "free_bytes", lambda: None)
    with fixed(tmp_path, "cache") as run:
        list(DataLoader(Numbers(), batch_size=2))
    assert "give a size: cache=4G" in run.fixes()["cache"]["reasons"][0]
    assert free_bytes(tmp_path) is None


def test_sizes():
    assert [parse_size(text) for text in ("4G", "500", "1.5MiB", "2kB")] == [
        4 << 30,
        500 << 20,
        3 << 19,
        2048,
    ]
    assert sample_bytes({"x": torch.zeros(1000), "y": b"12"}) > 4000
    nested = (torch.zeros(2), [{"a": 1}])
    assert copied_sample(nested)[1] == nested[1]
    assert copied_sample(nested)[1][0] is not nested[1][0]


def test_its_values_and_its_edit():
    for text in ("", "lots", "-1", "0"):
        with pytest.raises(UsageError, match="a size such as"):
            fix_named("cache").parse(text)
    with pytest.raises(UsageError, match="cannot be combined"):
        parse_fixes(["workers", "cache"])
    assert "__getitem__" in fix_named("cache").edit(None, "x = 1").words
