"""What code is seen to change, and what state is seen to have changed."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from stepscope.fixes.inspect.code_stores import read_stores
from stepscope.fixes.inspect.dataset_traits import dataset_traits
from stepscope.fixes.inspect.state_digest import EACH_EPOCH, is_path
from stepscope.fixes.inspect.state_watch import StateWatch
from stepscope.record.fix import TraitKind

LOG: list[int] = []
KEPT: dict[int, int] = {}
FACTOR = 2


class Code:
    def counts(self, i):
        self.visits[i] += 1
        return self.rows[i]

    def counts_by_get(self, i):
        self.visits[i] = self.visits.get(i, 0) + 1

    def marks(self, i):
        self.seen[i] = True

    def remembers(self, i):
        if i not in self.memo:
            self.memo[i] = self.load(i) if i else self.load(1)
        return self.memo[i]

    def remembers_by_default(self, i):
        return self.memo.setdefault(i, self.load(i))

    def has_another_name(self, i):
        rows = self.rows
        for row in rows:
            row[0] -= 1

    def works_on_its_own(self, items):
        made, counts = {}, [0] * 4
        for place, item in enumerate(items):
            made[place] = item
            counts[place % 4] += 1
            made["last"] = counts[0] if item else None
        made.update(a=1)
        return [made[key] for key in made], self.rows[0]

    def sets(self, i):
        self.count = i
        self.inner.count = i
        Code.total = i

    def changes_what_it_is_given(self, rows, **more):
        rows.append(1)
        more.pop("x", None)

    def in_place(self, x):
        self.average.mul_(0.9)
        return x

    def logs(self, i):
        LOG.append(i)

    def reads_its_log(self, i):
        LOG.append(i)
        return len(LOG)


@pytest.mark.parametrize(
    ("name", "attributes", "others", "called", "given", "memos"),
    [
        ("counts", [], ["self.visits"], [], [], []),
        ("counts_by_get", [], ["self.visits"], [], [], []),
        ("marks", [], ["self.seen"], [], [], []),
        ("remembers", [], [], [], [], ["memo"]),
        ("remembers_by_default", [], [], [], [], ["memo"]),
        ("has_another_name", [], ["self.rows"], [], [], []),
        ("works_on_its_own", [], [], [], [], []),
        ("sets", ["self.count"], ["self.inner.count", "Code.total"], [], [], []),
        ("changes_what_it_is_given", [], [], [], ["rows"], []),
        ("in_place", [], [], ["self.average"], [], []),
        ("logs", [], [], [], [], []),
    ],
)
def test_what_code_changes_is_read_from_it(name, attributes, others, called, given, memos):
    found = read_stores(getattr(Code, name).__code__)
    assert list(found.attributes) == attributes
    assert list(found.others) == others
    assert list(found.called) == called
    assert list(found.given) == given
    assert sorted(found.memos) == memos


def test_a_log_is_told_from_something_read():
    assert "LOG" in read_stores(Code.logs.__code__).logs
    assert "LOG" not in read_stores(Code.logs.__code__).reads
    assert "LOG" in read_stores(Code.reads_its_log.__code__).reads


class Rows(Dataset):
    def __init__(self, **held):
        vars(self).update(held)

    def __getitem__(self, i):
        if i not in self.memo:
            self.memo[i] = self.rows[i] * FACTOR
        return self.memo[i]


def watched(**held):
    rows = Rows(**{"memo": {}, "rows": [1.0] * 8} | held)
    return rows, StateWatch(dataset_traits(rows))


def test_what_changed_is_named_with_its_place(monkeypatch):
    rows, watch = watched(labels=np.zeros(4))
    assert watch.changed() is None
    assert watch.changed(whole=True) is None
    rows.labels[2] = 1
    assert watch.changed().code == "Rows.labels"
    watch.renew()
    assert watch.changed() is None
    monkeypatch.setattr(__import__(__name__), "FACTOR", 3)
    assert watch.changed().code == "FACTOR"
    assert watch.changed().place.file.endswith("test_state_watch.py")


def test_a_memo_may_grow_but_not_change():
    rows, watch = watched(memo={i: torch.zeros(1) for i in range(5000)})
    assert watch.changed() is None
    rows, watch = watched()
    rows[0]
    rows[1]
    assert watch.changed() is None
    watch.renew(whole=True)
    rows.memo[0] = 7.0
    assert watch.changed().code == "Rows.memo"
    assert watch.changed(whole=True).code == "Rows.memo"


def test_what_is_too_large_for_each_batch_is_seen_with_each_epoch():
    rows, watch = watched(rows=[[float(i)] for i in range(5000)])
    rows.rows[4999][0] = -1.0
    assert watch.changed() is None
    assert watch.changed(whole=True).code == "Rows.rows"
    assert watch.unwatched is None


def test_what_is_too_large_altogether_is_told():
    _, watch = watched(rows=[[i] for i in range(EACH_EPOCH.items + 1)])
    assert watch.unwatched.what == TraitKind.UNWATCHED
    assert watch.unwatched.code == "Rows.rows"


class Raising:
    @property
    def __dict__(self):
        raise OSError("no")


def test_what_cannot_be_read_is_told():
    _, watch = watched(strange=Raising())
    assert watch.unwatched.what == TraitKind.UNREADABLE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data/train.csv", True),
        ("labels.npy", True),
        ("/a b/c", True),
        ("and/or something else", False),
        ("A sentence.", False),
        ("word", False),
    ],
)
def test_paths_are_told_from_texts(text, expected):
    assert is_path(text) is expected
