"""Pinned batches, copied without waiting."""

from collections import namedtuple

import pytest
import torch
from fixing import fixed
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from stepscope.fixes.base import FixContext
from stepscope.fixes.data.pin import NonBlockingCopies
from stepscope.fixes.inspect.tensors import (
    Move,
    cpu_tensors,
    leaves_blocking_open,
    requested_move,
    storage_key,
)
from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError
from stepscope.record.fix_words import sentence

GPU = "cuda:0"
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")]
Pair = namedtuple("Pair", "x y")


class Custom:
    def __init__(self, x):
        self.x = x


def test_the_tensors_of_any_batch_are_found():
    x, y, z = torch.zeros(3).unbind()
    batch = {"a": [x, "text"], "b": Pair(y, Custom(z)), "c": 3}
    assert {path: tensor is not None for path, tensor in cpu_tensors(batch)} == {
        ("a", 0): True,
        ("b", 0): True,
        ("b", 1, "x"): True,
    }
    assert list(cpu_tensors("text")) == []


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "move"),
    [
        ("to", (GPU,), {}, Move(torch.device(GPU))),
        ("cuda", (1,), {}, Move(torch.device("cuda:1"))),
        ("cuda", (GPU,), {}, Move(torch.device(GPU))),
        ("to", (torch.device(GPU), torch.half), {}, Move(torch.device(GPU), torch.half)),
        ("to", (), {"device": GPU, "dtype": torch.half}, Move(torch.device(GPU), torch.half)),
        ("to", (torch.half,), {}, None),
        ("to", (), {"memory_format": torch.channels_last}, None),
        ("to", ("cpu",), {}, None),
        ("to", (GPU,), {"copy": True}, None),
        ("to", (torch.zeros(1),), {}, None),
    ],
)
def test_moves_are_understood(name, args, kwargs, move):
    assert requested_move(name, args, kwargs) == move


def test_a_move_that_says_whether_it_waits_is_left_so():
    assert leaves_blocking_open((GPU,), {})
    assert not leaves_blocking_open((GPU,), {"non_blocking": False})
    assert not leaves_blocking_open((GPU, True), {})


class Program:
    """A program without a GPU that takes batches and moves them."""

    def __init__(self, run):
        context = FixContext(fix_named("pin"), run.observer.seams)
        context.tell()
        self.copies = NonBlockingCopies(context, lambda: self.asked.append("waits"))
        self.asked = []

    def batch(self, batch):
        self.copies.follow(self)
        return self.copies.next(lambda iterator: batch, self)

    def move(self, tensor, *args, **kwargs):
        def call(tensor, *args, **kwargs):
            self.asked.append(kwargs.get("non_blocking", False))

        self.copies.move("to", call, tensor, *(args or (GPU,)), **kwargs)


def test_only_tensors_of_a_loader_stop_waiting_after_two_batches(tmp_path):
    with fixed(tmp_path, "pin") as run:
        program = Program(run)
        for _ in range(4):
            batch = program.batch([torch.zeros(4)])
            program.move(batch[0])
        program.move(batch[0][:2])
        program.move(torch.zeros(4))
        program.move(batch[0], "cpu")
        program.move(batch[0], GPU, non_blocking=False)
    assert program.asked == [False, False, True, True, True, False, False, False]
    assert "the copy at" in run.fixes()["pin"]["where"][0]


def test_a_batch_changed_in_place_after_its_copy_ends_it(tmp_path):
    with fixed(tmp_path, "pin") as run:
        program = Program(run)
        for _ in range(5):
            batch = program.batch([torch.zeros(4)])
            program.move(batch[0])
            batch[0].add_(1)
    assert not any(program.asked)
    assert "a batch is changed in place after its copy" in run.fixes()["pin"]["reasons"][-1]


def test_a_batch_changed_before_its_copy_is_no_matter(tmp_path):
    with fixed(tmp_path, "pin") as run:
        program = Program(run)
        for _ in range(3):
            batch = program.batch([torch.zeros(4)])
            batch[0].add_(1)
            program.move(batch[0])
    assert program.asked == [False, False, True]


def test_a_batch_read_as_an_array_is_copied_before_that_may_change_it(tmp_path):
    with fixed(tmp_path, "pin") as run:
        program = Program(run)
        for number in range(4):
            batch = program.batch([torch.zeros(4)])
            if number == 3:
                program.copies.read(torch.Tensor.numpy, batch[0])
            program.move(batch[0])
            if number == 2:
                program.copies.read(torch.Tensor.numpy, batch[0][:2])
    assert program.asked == [False, False, True, "waits", False]


def test_batches_of_inference_are_copied_as_before(tmp_path):
    with fixed(tmp_path, "pin") as run, torch.inference_mode():
        program = Program(run)
        for _ in range(4):
            program.move(program.batch([torch.zeros(4)])[0])
    assert not any(program.asked)


def test_views_share_what_is_known_of_their_tensor():
    x = torch.zeros(4)
    assert storage_key(x) == storage_key(x[1:]) != storage_key(torch.zeros(4))
    assert storage_key(torch.eye(2).to_sparse()) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_machine_without_a_gpu_is_told(tmp_path):
    with fixed(tmp_path, "pin") as run:
        assert not DataLoader(TensorDataset(torch.zeros(4))).pin_memory
    assert run.fixes()["pin"]["reasons"] == ["no CUDA device"]


def test_batches_that_cannot_be_pinned_are_explained():
    error = RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
    assert "cannot be pinned" in sentence(fix_named("pin").explain(error, ""))
    assert fix_named("pin").explain(RuntimeError("x"), "") is None


def test_its_edits_and_its_values():
    pin = fix_named("pin")
    assert pin.edit(None, "x = DataLoader(data)").line == "x = DataLoader(data, pin_memory=True)"
    assert pin.edit(None, "  x = x.to(d)").line == "  x = x.to(d, non_blocking=True)"
    assert pin.edit(None, "x = x.cuda()").line == "x = x.cuda(non_blocking=True)"
    with pytest.raises(UsageError, match="takes no value"):
        pin.parse("1")


class Rows(Dataset):
    def __init__(self):
        self.data = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return {"x": self.data[index], "pair": Pair(index, 1.0)}


def train(workers=0):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.3), nn.Linear(8, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    loader = DataLoader(Rows(), batch_size=10, shuffle=True, num_workers=workers)
    for _ in range(3):
        for batch in loader:
            optimizer.zero_grad()
            loss = model(batch["x"].to("cuda")).square().mean() + batch["pair"].y.cuda().sum() * 0
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    weights = [p.detach().flatten() for p in model.parameters()]
    return torch.cat([torch.stack(losses), *weights])


class TestOnTheGpu:
    pytestmark = gpu

    @pytest.mark.parametrize("workers", [0, 2])
    def test_losses_stay_the_same(self, tmp_path, workers):
        plain = train(workers)
        with fixed(tmp_path, "pin") as run:
            pinned = train(workers)
        assert torch.equal(plain, pinned)
        assert run.fixes()["pin"]["kind"] == "exact"
        assert any("no longer waits" in where for where in run.fixes()["pin"]["where"])

    def test_batches_are_pinned_and_copied_without_waiting(self, tmp_path):
        seen = []
        original = torch.Tensor.to

        def watched(self, *args, **kwargs):
            seen.append((self.is_pinned(), kwargs.get("non_blocking")))
            return original(self, *args, **kwargs)

        torch.Tensor.to = watched
        try:
            with fixed(tmp_path, "pin"):
                for batch in DataLoader(Rows(), batch_size=8):
                    batch["x"].to("cuda").cpu()
        finally:
            torch.Tensor.to = original
        assert seen[-1] == (True, True)

    def test_a_dataset_on_the_gpu_is_left_alone(self, tmp_path):
        data = TensorDataset(torch.zeros(8, device="cuda"))
        with fixed(tmp_path, "pin") as run:
            assert len(list(DataLoader(data, batch_size=4))) == 2
        assert "holds tensors on the GPU" in run.fixes()["pin"]["reasons"][0]
