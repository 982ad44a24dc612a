"""Batches of another size."""

import pytest
import torch
from fixing import fixed
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError
from stepscope.record.fix_words import sentence

DATA = TensorDataset(torch.arange(20))


def sizes(loader):
    return [len(batch) for (batch,) in loader]


def test_loaders_form_batches_of_that_size(tmp_path):
    with fixed(tmp_path, "batch=8") as run:
        loader = DataLoader(DATA, 4, shuffle=True)
        assert sizes(loader) == [8, 8, 4]
        assert len(loader) == 3
        assert loader.batch_size == 8
    fact = run.fixes()["batch"]
    assert fact["kind"] == "semantic"
    assert "test_batch_fix.py" in fact["where"][0]
    assert fact["where"][0].endswith("4 → 8")
    assert sizes(DataLoader(DATA, 10)) == [10, 10]  # taken out again


def test_torchs_own_batch_sampler_follows(tmp_path):
    with fixed(tmp_path, "batch=8"):
        sampler = BatchSampler(SequentialSampler(DATA), 4, drop_last=True)
        assert sizes(DataLoader(DATA, batch_sampler=sampler)) == [8, 8]


def test_a_distributed_sampler_keeps_its_share(tmp_path):
    with fixed(tmp_path, "batch=8"):
        sampler = DistributedSampler(DATA, num_replicas=2, rank=0)
        assert sizes(DataLoader(DATA, batch_size=4, sampler=sampler)) == [8, 2]


class Own(BatchSampler):
    pass


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(20))


def test_a_stream_follows(tmp_path):
    with fixed(tmp_path, "batch=8"):
        assert [len(batch) for batch in DataLoader(Endless(), batch_size=4)] == [8, 8, 4]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "has batch size 1"),
        ({"batch_size": None}, "does not form batches"),
        ({"batch_size": 8}, "already has batch size 8"),
        ({"batch_size": 4, "sampler": SubsetRandomSampler([1, 2])}, "has only 2 samples"),
        (
            {"batch_sampler": Own(SequentialSampler(DATA), 4, drop_last=False)},
            "has its own batch sampler",
        ),
    ],
)
def test_other_loaders_are_left_alone(tmp_path, arguments, why):
    with fixed(tmp_path, "batch=8") as run:
        list(DataLoader(DATA, **arguments))
    assert run.fixes()["batch"]["state"] == "not applicable"
    assert why in run.fixes()["batch"]["reasons"][0]


def test_a_program_that_counts_on_its_size_is_told(tmp_path):
    with fixed(tmp_path, "batch=8"):
        (batch,) = next(iter(DataLoader(DATA, batch_size=5)))
        with pytest.raises(RuntimeError) as caught:
            batch.view(5, 1)
    reason = sentence(fix_named("batch").explain(caught.value, "batch.view(5, 1)"))
    assert reason == "the program relies on batches of 5; have it use the batch's own size"
    full = torch.OutOfMemoryError("CUDA out of memory.")
    assert "a batch of 8 does not fit" in sentence(fix_named("batch").explain(full, ""))
    assert fix_named("batch").explain(KeyError("x"), "") is None


def test_its_edit_and_its_values():
    edit = fix_named("batch").edit(8, "loader = DataLoader(data, batch_size=4)")
    assert edit.line == "loader = DataLoader(data, batch_size=8)"
    for text in (None, "0", "big"):
        with pytest.raises(UsageError):
            fix_named("batch").parse(text)
