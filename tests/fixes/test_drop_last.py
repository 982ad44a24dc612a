"""Leaving out the last batch."""

import pytest
import torch
from fixing import fixed
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError

DATA = TensorDataset(torch.arange(10))


def test_the_last_smaller_batch_is_left_out(tmp_path):
    with fixed(tmp_path, "drop_last") as run:
        sizes = [len(batch) for (batch,) in DataLoader(DATA, batch_size=4)]
    assert sizes == [4, 4]
    assert run.fixes()["drop_last"]["state"] == "applied"
    assert "test_drop_last.py" in run.fixes()["drop_last"]["where"][0]
    assert len(DataLoader(DATA, batch_size=4)) == 3  # taken out again


def test_a_loader_with_a_batch_sampler_of_its_own_is_left_alone(tmp_path):
    with fixed(tmp_path, "drop_last") as run:
        sampler = BatchSampler(SequentialSampler(DATA), 4, drop_last=False)
        assert len(list(DataLoader(DATA, batch_sampler=sampler))) == 3
    assert "its own batch sampler" in run.fixes()["drop_last"]["reasons"][0]


def test_a_loader_that_forms_no_batches_is_left_alone(tmp_path):
    with fixed(tmp_path, "drop_last") as run:
        assert len(list(DataLoader(DATA, batch_size=None))) == 10
    assert run.fixes()["drop_last"]["state"] == "not applicable"


def test_a_program_without_a_loader_is_told_so(tmp_path):
    with fixed(tmp_path, "drop_last") as run:
        pass
    assert run.fixes()["drop_last"]["reasons"] == ["no DataLoader forms batches"]


def test_its_edit_changes_the_loaders_line():
    edit = fix_named("drop_last").edit(None, "    loader = DataLoader(data, batch_size=4)")
    assert edit.line == "    loader = DataLoader(data, batch_size=4, drop_last=True)"


def test_it_takes_no_value():
    with pytest.raises(UsageError, match="takes no value"):
        fix_named("drop_last").parse("yes")
