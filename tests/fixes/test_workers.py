"""Batches from worker processes."""

import functools
import random

import numpy as np
import pytest
import torch
from fixing import fixed
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
)

from stepscope.fixes.data.workers import default_workers
from stepscope.fixes.inspect.dataset_traits import dataset_traits
from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError
from stepscope.record.fix_words import sentence, variation_words


class Numbers(Dataset):
    """Made from numbers drawn beforehand; transforms come on top."""

    def __init__(self, transform=None):
        self.data = torch.randn(21, 4, generator=torch.Generator().manual_seed(1))
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        sample = self.data[index]
        return sample if self.transform is None else self.transform(sample)


def train(make, epochs=3, seed=3):
    """Losses and weights of a small training with dropout; `make` gives an epoch's batches."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(epochs):
        for batch in make():
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return torch.cat([torch.stack(losses), *(p.detach().flatten() for p in model.parameters())])


def both(tmp_path, build, *fixes):
    """The same training without and with fixes, and what became of those."""
    plain = train(build())
    with fixed(tmp_path, *fixes) as run:
        changed = train(build())
    return plain, changed, run.fixes()[fixes[0].partition("=")[0]]


def shuffled():
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True)
    return lambda: loader


def test_a_loader_gets_workers_and_keeps_its_batches(tmp_path):
    with fixed(tmp_path, "workers=2") as run:
        loader = DataLoader(Numbers(), 4)
        iterator = iter(loader)
        assert len(iterator._workers) == loader.num_workers == 2
        batches = list(iterator)
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4, 1]
    assert torch.equal(torch.cat(batches), Numbers().data)
    fact = run.fixes()["workers"]
    assert fact["kind"] == "exact"
    assert "0 → 2 workers" in fact["where"][0]
    assert "test_workers.py" in fact["where"][0]


def test_losses_stay_the_same_with_shuffling_and_dropout(tmp_path):
    plain, changed, fact = both(tmp_path, shuffled, "workers=2")
    assert torch.equal(plain, changed)
    assert fact["kind"] == "exact"


def test_losses_stay_the_same_when_two_loaders_are_zipped(tmp_path):
    def build():
        one = DataLoader(Numbers(), batch_size=4, shuffle=True)
        other = DataLoader(Numbers(), batch_size=4, shuffle=True)
        return lambda: (a + b for a, b in zip(one, other, strict=True))

    plain, changed, _ = both(tmp_path, build, "workers=1")
    assert torch.equal(plain, changed)


def test_losses_stay_the_same_when_epochs_are_broken_off(tmp_path):
    def build():
        loader = DataLoader(Numbers(), batch_size=4, shuffle=True)
        return lambda: (batch for batch, _ in zip(loader, range(3), strict=False))

    plain, changed, fact = both(tmp_path, build, "workers=2")
    assert torch.equal(plain, changed)
    assert fact["kind"] == "exact"


def test_losses_stay_the_same_with_a_generator_of_the_loaders_own(tmp_path):
    def build():
        generator = torch.Generator().manual_seed(5)
        loader = DataLoader(Numbers(), batch_size=4, shuffle=True, generator=generator)
        return lambda: loader

    plain, changed, fact = both(tmp_path, build, "workers=2")
    assert torch.equal(plain, changed)
    assert fact["kind"] == "exact"


def test_a_generator_read_ahead_in_epochs_broken_off_is_told(tmp_path):
    with fixed(tmp_path, "workers=2") as run:
        loader = DataLoader(Numbers(), 4, shuffle=True, generator=torch.Generator())
        for _ in range(2):
            next(iter(loader))
    assert run.fixes()["workers"]["kind"] == "numeric"
    assert "leaves epochs early" in run.fixes()["workers"]["where"][-1]


@pytest.mark.parametrize(
    "transform",
    [
        lambda x: x + random.random(),
        lambda x: x + torch.rand(1),
        lambda x: x.clone().normal_(),
        nn.Dropout(0.5),
    ],
)
def test_random_transforms_are_told_to_draw_otherwise(tmp_path, transform):
    with fixed(tmp_path, "workers=1") as run:
        next(iter(DataLoader(Numbers(transform), batch_size=4)))
    fact = run.fixes()["workers"]
    assert fact["kind"] == "numeric"
    assert "other random draws" in fact["where"][0]


def test_a_transform_set_after_the_loader_was_made_counts(tmp_path):
    with fixed(tmp_path, "workers=1") as run:
        data = Numbers()
        loader = DataLoader(data, batch_size=4)
        data.transform = lambda x: x * torch.randint(2, ())
        next(iter(loader))
    assert run.fixes()["workers"]["kind"] == "numeric"


class Counting(Numbers):
    def __getitem__(self, index):
        self.count = getattr(self, "count", 0) + 1
        return super().__getitem__(index) + self.count


class Summing(Numbers):
    def __getitem__(self, index):
        return super().__getitem__(index) / self.data.norm()


class Drawing(Sampler):
    def __iter__(self):
        return (random.randrange(21) for _ in range(8))

    def __len__(self):
        return 8


@pytest.mark.parametrize(
    ("data", "sampler", "why"),
    [
        (Counting(), None, "`self.count` is set at"),
        (Summing(), None, "other rounding: `norm` at"),
        (Numbers(), Drawing(), "the sampler may draw as it goes: `random.randrange` at"),
    ],
)
def test_what_may_change_is_told(tmp_path, data, sampler, why):
    with fixed(tmp_path, "workers=1") as run:
        next(iter(DataLoader(data, batch_size=4, sampler=sampler)))
    assert run.fixes()["workers"]["kind"] == "numeric"
    assert why in run.fixes()["workers"]["where"][0]


class Normalised(Numbers):
    """Has names that mean something elsewhere, and draws before the first sample only."""

    def __init__(self):
        super().__init__(doubled)
        self.mean, self.shuffled = 2.0, random.sample(range(21), 21)

    def __getitem__(self, index):
        return super().__getitem__(self.shuffled[index]) - self.mean


def doubled(sample):
    return sample * 2


def jittered(sample):
    return _jitter(sample)


def _jitter(sample):
    from random import gauss

    return sample + gauss()


class Opening(Numbers):
    def __getitem__(self, index):
        if self.transform is None:
            self.transform = torch.clone
        return self.data[index]


@pytest.mark.parametrize(
    ("things", "why"),
    [
        ([Normalised(), default_collate], None),
        ([Subset(ConcatDataset([Normalised(), Numbers()]), [1, 30])], None),
        ([Numbers(functools.partial(torch.add, other=1))], None),
        ([Numbers(jittered)], "other random draws: `random` at "),
        ([Numbers([jittered])], "other random draws"),
        ([Numbers(functools.lru_cache(jittered))], "other random draws"),
        ([Numbers(torch.distributions.Normal(0, 1).sample)], "other random draws"),
        ([Numbers(), lambda samples: random.shuffle(samples)], "other random draws"),
        ([Numbers(np.random.default_rng(0))], "it holds a Generator"),
        ([Numbers(iter([1]))], "perhaps other samples: it holds a list_iterator"),
        ([Opening()], "`self.transform` is set at"),
        ([Numbers(eval("lambda x: eval('x')"))], "`eval` at"),
    ],
)
def test_whether_samples_vary_is_read_from_the_code(things, why):
    found = dataset_traits(*things).varies()
    assert found is None if why is None else why in variation_words(found)


class Answering:
    """An object of the program's that must not be asked for just any attribute."""

    def __getattr__(self, name):
        raise KeyboardInterrupt(name)


def test_objects_are_not_asked_for_attributes_that_their_class_lacks():
    assert not dataset_traits(Numbers(Answering())).cuda


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


class Split(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        return iter(range(6)) if info is None else iter(range(info.id, 6, info.num_workers))


def test_a_stream_that_does_not_split_itself_is_left_alone(tmp_path):
    with fixed(tmp_path, "workers=2") as run:
        assert len(list(DataLoader(Stream(), batch_size=None))) == 6
    assert "each worker would give all the data" in run.fixes()["workers"]["reasons"][0]


def test_a_stream_that_splits_itself_gets_workers(tmp_path):
    with fixed(tmp_path, "workers=2") as run:
        assert sorted(map(int, DataLoader(Split(), batch_size=None))) == list(range(6))
    assert run.fixes()["workers"]["kind"] == "numeric"


def test_a_dataset_with_an_open_file_is_left_alone(tmp_path):
    data = Numbers()
    with open(__file__) as data.file, fixed(tmp_path, "workers=2") as run:
        assert DataLoader(data, batch_size=4).num_workers == 0
    assert "holds an open file; open it at the first sample" in run.fixes()["workers"]["reasons"][0]


def test_a_dataset_that_uses_the_gpu_is_left_alone(tmp_path):
    with fixed(tmp_path, "workers=2") as run:
        DataLoader(Numbers(lambda x: x.cuda()), batch_size=4)
        DataLoader(Numbers(lambda x: x.to("cuda:0")), batch_size=4)
    reasons = run.fixes()["workers"]["reasons"]
    assert "moves data to the GPU (`cuda` at" in reasons[0]
    assert "names the GPU in" in reasons[1]


def test_a_loader_with_enough_workers_is_left_alone(tmp_path):
    with fixed(tmp_path, "workers=1") as run:
        assert DataLoader(Numbers(), batch_size=4, num_workers=2).num_workers == 2
    assert "already has 2 workers" in run.fixes()["workers"]["reasons"][0]


def test_arguments_that_belong_to_workers_are_kept(tmp_path):
    started = []
    with fixed(tmp_path, "workers=1"):
        loader = DataLoader(Numbers(), batch_size=4, worker_init_fn=started.append)
        assert loader.worker_init_fn == started.append


def test_a_loader_made_anew_from_the_programs_counts_as_it(tmp_path):
    with fixed(tmp_path, "workers=1") as run:
        data = TensorDataset(torch.arange(4))
        first = DataLoader(data, batch_size=2)
        list(DataLoader(data, batch_size=2, num_workers=first.num_workers))
    assert run.fixes()["workers"]["state"] == "applied"
    assert "0 → 1 workers" in run.fixes()["workers"]["where"][0]


def test_failures_of_workers_are_explained():
    cuda = RuntimeError(
        "Caught RuntimeError in DataLoader worker process 0. Cannot re-initialize CUDA in forked"
        " subprocess."
    )
    assert "the dataset uses the GPU" in sentence(fix_named("workers").explain(cuda, ""))
    assert fix_named("workers").explain(ValueError("no"), "") is None


def test_its_edit_and_its_values():
    edit = fix_named("workers").edit(4, "loader = DataLoader(data, num_workers=0)")
    assert edit.line == "loader = DataLoader(data, num_workers=4)"
    assert (
        f"num_workers={default_workers()}" in fix_named("workers").edit(None, "DataLoader(x)").line
    )
    assert 1 <= default_workers() <= 12
    for text in ("0", "-1", "many", ""):
        with pytest.raises(UsageError, match="a number"):
            fix_named("workers").parse(text)
