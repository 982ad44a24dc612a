"""Batches from workers in memory that was used before."""

import gc
import os
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from fixing import fixed
from torch.utils.data import DataLoader, Dataset, default_collate

from stepscope.fixes.data import recycle
from stepscope.fixes.data.recycle import (
    FREE,
    GONE,
    SENT,
    TAKEN,
    ReceivedSlots,
    WorkerSlots,
    slot_footer,
)
from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError

SIZE = 10_000  # floats of a sample: seven of them are more than 256 KiB


class Numbers(Dataset):
    """Each sample is full of its own number."""

    def __init__(self, count=100, size=SIZE):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"x": torch.full((self.size,), float(index)), "y": index}


def loader(**more):
    return DataLoader(Numbers(), **{"batch_size": 8, "num_workers": 2} | more)


def is_right(batch):
    return torch.equal(batch["x"], batch["y"].float()[:, None].expand_as(batch["x"]))


def storages(batches):
    """Where batches lie, each looked at and let go before the next."""
    return {batch["x"].untyped_storage().data_ptr() for batch in batches if is_right(batch)}


def read_epochs(batches, count=3):
    return [[batch["y"].tolist() for batch in batches if is_right(batch)] for _ in range(count)]


def test_batches_are_the_same_and_lie_in_memory_that_was_used_before(tmp_path):
    torch.manual_seed(0)
    plain = read_epochs(loader(shuffle=True))
    with fixed(tmp_path, "recycle") as run:
        torch.manual_seed(0)
        assert read_epochs(loader(shuffle=True)) == plain
        many = DataLoader(Numbers(400), batch_size=8, num_workers=2)
        assert len(storages(many)) <= 16
    assert sum(map(len, plain[0])) == 100  # none was wrong
    told = run.fixes()["recycle"]
    assert (told["state"], told["kind"]) == ("applied", "exact")
    assert "test_recycle.py" in told["where"][0]


def test_what_the_program_keeps_stays_what_it_is(tmp_path):
    with fixed(tmp_path, "recycle"):
        kept = list(loader())
        rows = [batch["x"][2:4] for batch in loader()]
        arrays = [batch["x"].numpy() for batch in loader()]
        memory = [batch["x"].untyped_storage() for batch in loader()]
    assert all(map(is_right, kept))
    for number in range(12):
        wanted = float(8 * number)
        assert rows[number].mean(1).tolist() == [wanted + 2, wanted + 3]
        assert arrays[number][0].tolist() == [wanted] * SIZE
        assert torch.tensor([]).set_(memory[number])[:5].tolist() == [wanted] * 5


class Keeping:
    """A collate function that keeps its last batch, and says whether that is still right.

    Of that it looks at what is in shared memory from the start: the rest is moved there while it
    is sent.
    """

    last = wanted = None

    def __call__(self, samples):
        rows = () if self.last is None else zip(self.last, self.wanted, strict=True)
        still = all(bool((row == wanted).all()) for row, wanted in rows)
        batch = default_collate(samples)
        self.last, self.wanted = batch["x"], [sample["y"] for sample in samples]
        return batch | {"still": still}


def test_what_a_worker_keeps_stays_what_it_is(tmp_path):
    with fixed(tmp_path, "recycle") as run:
        found = list(loader(collate_fn=Keeping(), num_workers=1))
    assert [(bool(batch["still"]), is_right(batch)) for batch in found] == [(True, True)] * 13
    assert run.fixes()["recycle"]["state"] == "applied"


def test_kept_workers_and_workers_of_our_own_have_it_too(tmp_path):
    plain = read_epochs(loader(num_workers=0))
    with fixed(tmp_path, "workers=2", "persistent", "recycle") as run:
        assert read_epochs(loader(num_workers=0)) == plain
    assert run.fixes()["recycle"]["state"] == "applied"


def test_batches_of_other_sizes_go_between(tmp_path):
    class Growing(Numbers):
        def __getitem__(self, index):
            size = self.size * (1 + index // 8 % 3)
            return {"x": torch.full((size,), float(index)), "y": index}

    with fixed(tmp_path, "recycle"):
        found = DataLoader(Growing(), batch_size=8, num_workers=1)
        assert all(map(is_right, found))


@pytest.mark.launches
@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"num_workers": 0}, "no DataLoader has workers that hand over batches of 256 KiB"),
        ({"batch_size": 1}, "no DataLoader has workers that hand over batches of 256 KiB"),
        ({"multiprocessing_context": "spawn"}, "needs workers started by fork (these use spawn)"),
    ],
)
def test_where_it_has_nothing_to_do_it_says_so(tmp_path, more, reason):
    with fixed(tmp_path, "recycle") as run:
        small = DataLoader(Numbers(16), **{"batch_size": 8, "num_workers": 1} | more)
        assert all(map(is_right, small))
    told = run.fixes()["recycle"]
    assert told["state"] == "not applicable"
    assert reason in (*told["reasons"], fix_named("recycle").missing)[0]


def test_another_way_to_share_memory_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.multiprocessing._sharing_strategy", "file_system")
    with fixed(tmp_path, "recycle") as run:
        assert all(map(is_right, loader()))
    assert "file_system" in run.fixes()["recycle"]["reasons"][0]


@pytest.fixture
def handed_over():
    """A worker's slots, and what the program has received of them, in one process."""
    slots, received = WorkerSlots(7), ReceivedSlots(7)

    def hand_over(size=1 << 20):
        storage = slots.take(size)
        slots.sent(storage)
        received.came(storage)
        return storage

    return slots, received, hand_over


def other(received):
    """Something else arrives, which is when memory is looked at."""
    slots = WorkerSlots(7)
    storage = slots.take(1 << 19)
    slots.sent(storage)
    received.came(storage)


def test_memory_is_free_once_nothing_refers_to_it(handed_over):
    slots, received, hand_over = handed_over
    storage = hand_over()
    slots._slots.clear()  # as a worker's are not this process's
    foot, tensor = slot_footer(storage, 7), torch.tensor([]).set_(storage)
    for holder in ("the storage", "a tensor", "a part of it"):
        other(received)
        assert foot.state == SENT, holder
        if holder == "the storage":
            del storage
        elif holder == "a tensor":
            part = tensor[1:2]
            del tensor
    del part
    other(received)
    assert foot.state == FREE


def test_a_worker_uses_again_what_is_free_and_fits(handed_over):
    slots, _, _ = handed_over
    first = slots.take(1 << 20)
    address, foot = first.data_ptr(), slot_footer(first, 7)
    assert slots.take(1 << 20).data_ptr() != address  # it is in use here
    slots.sent(first)
    del first
    assert slots.take(1 << 20).data_ptr() != address  # and there
    assert slots.take(1 << 19).data_ptr() != address
    foot.state = FREE
    assert slots.take(1 << 20).data_ptr() == address
    assert foot.state == TAKEN


def test_a_worker_gives_back_memory_of_sizes_that_do_not_come_again(handed_over):
    slots, _, _ = handed_over
    for number in range(200):
        storage = slots.take((1 << 20) + 4096 * number)
        slots.sent(storage)
        slot_footer(storage, 7).state = FREE
        del storage
        assert len(slots._slots) == 1


def test_the_program_gives_back_what_its_worker_has_no_use_for(handed_over):
    _, received, hand_over = handed_over
    gone, kept = (hand_over() for _ in range(2))
    addresses = gone.data_ptr(), kept.data_ptr()
    slot_footer(gone, 7).state = GONE
    del gone, kept
    other(received)
    assert set(received._slots[os.getpid()]) & set(addresses) == {addresses[1]}


def test_what_a_worker_did_not_send_is_used_again_at_once(handed_over):
    slots, _, _ = handed_over
    assert len({slots.take(1 << 20).data_ptr() for _ in range(9)}) == 1
    assert slots.take(1 << 10) is None


def test_a_slot_that_is_sent_while_it_is_looked_at_is_not_free(handed_over, monkeypatch):
    slots, _, _ = handed_over
    slots.take(1 << 20)

    def unused(*_):
        slots.sent(slots._slots[0])  # another thread does so, and lets go of it
        return True

    monkeypatch.setattr(recycle, "_unused", unused)
    assert not slots._is_free(0)


def test_workers_keep_a_few_slots_only(handed_over):
    slots, received, hand_over = handed_over
    for _ in range(80):
        hand_over()
    assert len(slots._slots) == 64
    assert len(received._slots[os.getpid()]) == 64
    assert len(received._busy) == 64


@pytest.mark.parametrize("way", ["forked", "shared"])
def test_memory_that_goes_to_another_process_is_not_used_again(handed_over, way):
    slots, received, hand_over = handed_over
    kept, gone = hand_over(), hand_over()
    addresses = kept.data_ptr(), gone.data_ptr()
    other(received)
    received.forked() if way == "forked" else received.shared(gone)
    left = {addresses[0]} if way == "shared" else set()
    assert set(received._slots[os.getpid()]) & set(addresses) == left
    del kept, gone
    slots.take(1 << 20)
    assert len(slots._slots) == 1 + len(left)


def test_memory_that_comes_back_from_elsewhere_is_not_used_again(handed_over):
    slots, received, hand_over = handed_over
    storage = hand_over()
    received.shared(storage)
    received.came(storage)
    assert not received._busy
    assert not slots._is_free(0)


def test_a_batch_sent_on_by_the_program_is_noticed(tmp_path):
    with fixed(tmp_path, "recycle"):
        sent = [(ForkingPickler.dumps(batch["x"]), batch["y"]) for batch in loader(num_workers=1)]
        found = [(ForkingPickler.loads(data), labels) for data, labels in sent]
    assert all(is_right({"x": data, "y": labels}) for data, labels in found)


def test_workers_that_are_gone_are_forgotten(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(
        recycle, "ReceivedSlots", lambda mark: made.append(ReceivedSlots(mark)) or made[-1]
    )
    with fixed(tmp_path, "recycle"):
        batches = iter(loader())
        next(batches)
        assert made[0]._slots
        assert all(map(is_right, batches))
        del batches
        gc.collect()
        assert not made[0]._slots


def test_its_edit_is_told_in_words_and_it_takes_no_value():
    assert "collate_fn" in fix_named("recycle").edit(None, "loader = DataLoader(data)").words
    with pytest.raises(UsageError):
        fix_named("recycle").parse("2")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("fixes", [("recycle",), ("recycle", "pin"), ("recycle", "prefetch")])
def test_pinned_batches_are_the_same_on_the_gpu(tmp_path, fixes):
    with fixed(tmp_path, *fixes) as run:
        for batch in loader(pin_memory=True):
            moved = {name: value.cuda(non_blocking=True) for name, value in batch.items()}
            assert is_right(moved)
    assert run.fixes()["recycle"]["state"] == "applied"
