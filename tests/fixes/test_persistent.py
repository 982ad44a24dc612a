"""Workers kept from epoch to epoch."""

import os

import pytest
import torch
from fixing import fixed
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError


class Numbers(Dataset):
    """Numbers, and the process that made them."""

    def __init__(self):
        self.data = torch.arange(12.0).view(12, 1)
        self.factor = 1

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index] * self.factor, os.getpid()


class Noisy(Numbers):
    def __getitem__(self, index):
        return self.data[index] + torch.rand(1), 0


def train(loader, epochs=3):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    losses = []
    for _ in range(epochs):
        for batch, _ in loader:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return torch.cat([torch.stack(losses), *(p.detach().flatten() for p in model.parameters())])


def processes(loader):
    return {int(pid) for _, pids in loader for pid in pids}


def test_the_same_workers_serve_every_epoch(tmp_path):
    with fixed(tmp_path, "persistent") as run:
        loader = DataLoader(Numbers(), batch_size=4, num_workers=1)
        assert processes(loader) == processes(loader)
    fact = run.fixes()["persistent"]
    assert fact["kind"] == "exact"
    assert "test_persistent.py" in fact["where"][0]


def test_losses_stay_the_same_with_shuffling_and_dropout(tmp_path):
    plain = train(DataLoader(Numbers(), batch_size=5, shuffle=True, num_workers=2))
    with fixed(tmp_path, "persistent"):
        kept = train(DataLoader(Numbers(), batch_size=5, shuffle=True, num_workers=2))
    assert torch.equal(plain, kept)


def test_losses_stay_the_same_together_with_workers(tmp_path):
    plain = train(DataLoader(Numbers(), batch_size=5, shuffle=True))
    with fixed(tmp_path, "persistent", "workers=2") as run:
        loader = DataLoader(Numbers(), batch_size=5, shuffle=True)
        kept = train(loader)
        assert loader._iterator is not None
    assert torch.equal(plain, kept)
    assert {fact["kind"] for fact in run.fixes().values()} == {"exact"}


def test_a_dataset_that_draws_is_told_to_draw_otherwise(tmp_path):
    with fixed(tmp_path, "persistent") as run:
        list(DataLoader(Noisy(), batch_size=4, num_workers=1))
    assert run.fixes()["persistent"]["kind"] == "numeric"
    assert "other random draws: `torch.rand` at" in run.fixes()["persistent"]["where"][0]


def test_what_is_set_on_the_dataset_between_epochs_reaches_it(tmp_path):
    with fixed(tmp_path, "persistent") as run:
        data = Numbers()
        loader = DataLoader(data, batch_size=12, num_workers=1)
        first = processes(loader)
        data.factor = 3
        ((batch, pids),) = list(loader)
        assert torch.equal(batch, data.data * 3)
        assert int(pids[0]) not in first
        data.data += 1
        assert torch.equal(next(iter(loader))[0], data.data * 3)
    assert "between epochs, so workers restart" in run.fixes()["persistent"]["reasons"][0]


def test_two_loops_over_one_loader_at_a_time_stay_apart(tmp_path):
    with fixed(tmp_path, "persistent"):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=1)
        pairs = [(a[0, 0].item(), b[0, 0].item()) for a, _ in loader for b, _ in loader]
        zipped = [torch.equal(a[0], b[0]) for a, b in zip(loader, loader, strict=True)]
    assert pairs == [(a, b) for a in (0.0, 4.0, 8.0) for b in (0.0, 4.0, 8.0)]
    assert zipped == [True, True, True]


def test_an_epoch_broken_off_is_followed_by_a_whole_one(tmp_path):
    with fixed(tmp_path, "persistent"):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=1)
        for _ in loader:
            break
        assert torch.equal(torch.cat([batch for batch, _ in loader]), Numbers().data)


def test_workers_that_live_to_the_end_of_the_program_are_told_to_end(tmp_path, monkeypatch):
    ends = []
    monkeypatch.setattr("atexit.register", ends.append)
    with fixed(tmp_path, "persistent"):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=2)
        list(loader)
        workers = loader._iterator._workers
        assert all(worker.is_alive() for worker in workers)
        for end in ends:
            end()
        assert [worker.exitcode for worker in workers] == [0, 0]


def test_a_process_forked_by_the_program_leaves_its_workers_alone(tmp_path, monkeypatch):
    ends = []
    monkeypatch.setattr("atexit.register", ends.append)
    with fixed(tmp_path, "persistent"):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=1)
        before = processes(loader)
        monkeypatch.setattr("os.getpid", lambda: -1)
        for end in ends:
            end()
        monkeypatch.undo()
        assert processes(loader) == before


def test_a_loader_without_workers_is_told_so(tmp_path):
    with fixed(tmp_path, "persistent") as run:
        list(DataLoader(Numbers(), batch_size=4))
        DataLoader(Numbers(), num_workers=1, persistent_workers=True)
    reasons = run.fixes()["persistent"]["reasons"]
    assert "has no workers; add --fix workers" in reasons[0]
    assert "already keeps its workers" in reasons[1]


def test_its_edit_and_its_values():
    edit = fix_named("persistent").edit(None, "loader = DataLoader(data, num_workers=2)")
    assert edit.line == "loader = DataLoader(data, num_workers=2, persistent_workers=True)"
    with pytest.raises(UsageError, match="takes no value"):
        fix_named("persistent").parse("1")
