"""Small programs whose datasets, collate functions, samplers or loops change what later samples
are, in the manner of `stateful_data`."""

import functools
import itertools
import random
from collections import Counter, defaultdict

import numpy as np
import torch
from stateful_data import (
    COUNT,
    PROGRAMS,
    SPACE,
    Made,
    _set,
    between_batches,
    between_epochs,
    dataset,
    number,
    plain_epochs,
    program,
    seen_in,
)
from torch.utils.data import Sampler, default_collate

TOTAL = 0
USED: list[int] = []


def _makes(sample, **held):
    """Three epochs of a dataset that changes itself."""

    def run(load):
        return plain_epochs(load(dataset(sample, **{name: make() for name, make in held.items()})))

    run.__name__ = sample.__name__
    program(run)
    return sample


class _Meter:
    def __init__(self):
        self.total = 0

    def update(self):
        self.total += 1
        return self.total


_zeros = functools.partial(lambda: [0.0] * COUNT)
by = functools.partial


def visits_in_a_list(self, i):
    self.visits[i] += 1
    return number(self.visits[i])


def visits_in_an_array(self, i):
    self.visits[i] += 1
    return number(self.visits[i])


def visits_by_another_name(self, i):
    visits = self.visits
    visits[i] = visits[i] + 1
    return number(visits[i])


def visits_in_a_dictionary(self, i):
    self.visits[i] = self.visits.get(i, 0) + 1
    return number(self.visits[i])


def visits_in_a_counter(self, i):
    self.visits.update([i])
    return number(self.visits[i])


def visits_in_lists(self, i):
    self.visits[i].append(i)
    return number(len(self.visits[i]))


def samples_counted(self, i):
    self.count += 1
    return number(self.count)


def samples_counted_by_setattr(self, i):
    setattr(self, "count", self.count + 1)  # noqa: B010
    return number(self.count)


def samples_counted_in_dict(self, i):
    self.__dict__["count"] = self.__dict__["count"] + 1
    return number(self.count)


def first_visits_in_a_set(self, i):
    first = i not in self.seen
    self.seen.add(i)
    return number(i * first)


def first_visits_marked(self, i):
    first = i not in self.seen
    self.seen[i] = True
    return number(i * first)


def counted_by_a_helper(self, i):
    return number(self.meter.update())


def counted_in_a_global(self, i):
    global TOTAL
    TOTAL += 1
    return number(TOTAL)


def logged_and_read(self, i):
    USED.append(i)
    return number(len(USED))


def counted_in_a_class(self, i):
    type(self).count = type(self).count + 1
    return number(self.count)


def counted_in_a_namespace(self, i):
    SPACE.count = getattr(SPACE, "count", 0) + 1
    return number(SPACE.count)


def changes_its_rows(self, i):
    row = self.rows[i]
    row += 1
    return torch.from_numpy(row.copy())


def changes_its_tensor(self, i):
    return self.rows[i].add_(1).clone()


def goes_on(self, i):
    return number(next(self.numbers))


def draws_from_python(self, i):
    return number(i + random.random())


def draws_from_numpy(self, i):
    return number(i + np.random.rand())


def draws_from_torch(self, i):
    return number(i) + torch.rand(())


def draws_from_its_own(self, i):
    return number(i) + torch.rand((), generator=self.generator)


SELF_CHANGING = [
    _makes(visits_in_a_list, visits=_zeros),
    _makes(visits_in_an_array, visits=by(np.zeros, COUNT)),
    _makes(visits_by_another_name, visits=_zeros),
    _makes(visits_in_a_dictionary, visits=dict),
    _makes(visits_in_a_counter, visits=Counter),
    _makes(visits_in_lists, visits=by(defaultdict, list)),
    _makes(samples_counted, count=int),
    _makes(samples_counted_by_setattr, count=int),
    _makes(samples_counted_in_dict, count=int),
    _makes(first_visits_in_a_set, seen=set),
    _makes(first_visits_marked, seen=dict),
    _makes(counted_by_a_helper, meter=_Meter),
    _makes(changes_its_rows, rows=by(np.zeros, (COUNT, 2))),
    _makes(changes_its_tensor, rows=by(torch.zeros, COUNT)),
    _makes(goes_on, numbers=itertools.count),
    _makes(draws_from_python),
    _makes(draws_from_numpy),
    _makes(draws_from_torch),
    _makes(draws_from_its_own, generator=lambda: torch.Generator().manual_seed(1)),
]


@program
def counts_in_a_global(load):
    global TOTAL
    TOTAL = 0
    return plain_epochs(load(dataset(counted_in_a_global)))


@program
def counts_in_a_class(load):
    kind = type("Counting", (Made,), {"__getitem__": counted_in_a_class, "count": 0})
    return plain_epochs(load(kind()))


@program
def counts_in_a_namespace(load):
    SPACE.count = 0
    return plain_epochs(load(dataset(counted_in_a_namespace)))


@program
def reads_its_log(load):
    USED.clear()
    return plain_epochs(load(dataset(logged_and_read)))


@program
def tells_what_was_used(load):
    """The program looks at the log that its dataset writes."""
    USED.clear()

    def sample(self, i):
        USED.append(i)
        return number(i)

    return [*plain_epochs(load(dataset(sample))), number(len(USED))]


def shifted(samples):
    return default_collate(samples) + SPACE.shift


@program
def collate_reads_a_global(load):
    loader = load(dataset(lambda self, i: number(i)), collate_fn=shifted)
    return between_epochs(loader, lambda epoch: _set(SPACE, "shift", epoch))


@program
def collate_reads_a_global_in_an_epoch(load):
    SPACE.shift = 0
    loader = load(dataset(lambda self, i: number(i)), collate_fn=shifted)
    return between_batches(loader, lambda count: _set(SPACE, "shift", count))


class Shifting:
    """A collate function with state."""

    def __init__(self):
        self.shift = self.calls = 0

    def __call__(self, samples):
        return default_collate(samples) + self.shift


class Counting(Shifting):
    def __call__(self, samples):
        self.calls += 1
        return default_collate(samples) + self.calls


@program
def collate_with_an_attribute(load):
    collate = Shifting()
    loader = load(dataset(lambda self, i: number(i)), collate_fn=collate)
    return between_epochs(loader, lambda epoch: _set(collate, "shift", epoch))


@program
def collate_counts_its_calls(load):
    return plain_epochs(load(dataset(lambda self, i: number(i)), collate_fn=Counting()))


class Following(Sampler):
    """Goes on to whatever the program last said."""

    def __init__(self):
        self.shift = 0

    def __iter__(self):
        for i in range(COUNT):
            yield (i + self.shift) % COUNT

    def __len__(self):
        return COUNT


class Weighted(Sampler):
    """The sample with the largest weight first; the program sets weights by its losses."""

    def __init__(self):
        self.weights = np.arange(float(COUNT))

    def __iter__(self):
        for _ in range(COUNT):
            yield int(self.weights.argmax())

    def __len__(self):
        return COUNT


@program
def sampler_follows_the_program(load):
    sampler = Following()
    loader = load(dataset(lambda self, i: number(i)), sampler=sampler)
    return between_batches(loader, lambda count: _set(sampler, "shift", count))


@program
def sampler_driven_by_losses(load):
    sampler = Weighted()

    def change(count):
        sampler.weights[sampler.weights.argmax()] -= 3

    return between_batches(load(dataset(lambda self, i: number(i)), sampler=sampler), change)


@program
def sampler_reads_a_global(load):
    class Reading(Following):
        def __iter__(self):
            for i in range(COUNT):
                yield (i + SPACE.start) % COUNT

    SPACE.start = 0
    loader = load(dataset(lambda self, i: number(i)), sampler=Reading())
    return between_batches(loader, lambda count: _set(SPACE, "start", count))


@program
def sampler_changed_between_epochs(load):
    sampler = Following()
    loader = load(dataset(lambda self, i: number(i)), sampler=sampler)
    return between_epochs(loader, lambda epoch: _set(sampler, "shift", epoch))


@program
def samples_changed_by_the_loop(load):
    rows = [torch.zeros(2) for _ in range(COUNT)]
    loader = load(dataset(lambda self, i: self.rows[i], rows=rows), batch_size=None)
    return [x for _ in range(3) for x in seen_in(loader, lambda batch: batch.add_(1))]


@program
def batches_of_samples_changed_by_the_loop(load):
    rows = [torch.zeros(2) for _ in range(COUNT)]
    loader = load(dataset(lambda self, i: self.rows[i], rows=rows), collate_fn=list)
    return [x for _ in range(3) for x in seen_in(loader, lambda batch: batch[0].add_(1))]


@program
def remembered_samples_changed_by_the_loop(load):
    @functools.lru_cache
    def remembered(i):
        return torch.zeros(2) + i

    loader = load(dataset(lambda self, i: remembered(i)), batch_size=None)
    return [x for _ in range(3) for x in seen_in(loader, lambda batch: batch.add_(1))]


def _own_batches(make, sample=lambda self, i: self.rows[i], **more):
    """Batches are what the dataset holds, and the loop changes them in place."""

    def run(load):
        made = dataset(sample, rows=make())
        loader = load(made, **{"batch_size": None} | more)
        return [x for _ in range(3) for x in seen_in(loader, _grow)]

    return run


def _grow(batch):
    """Every tensor in it grows."""
    if isinstance(batch, torch.Tensor):
        batch.add_(1)
    for inner in batch if isinstance(batch, list) else ():
        _grow(inner)


FILLED = torch.zeros(2, 2)


def filled(samples):
    """A collate function that fills the same tensor each time."""
    return torch.stack(samples, out=FILLED)


PROGRAMS |= {
    "rows_of_a_matrix": _own_batches(lambda: torch.zeros(COUNT, 2)),
    "rows_of_an_array": _own_batches(
        lambda: np.zeros((COUNT, 2)), lambda self, i: torch.from_numpy(self.rows[i])
    ),
    "rows_in_lists": _own_batches(
        lambda: [torch.zeros(2) for _ in range(COUNT)],
        lambda self, i: [self.rows[i], torch.ones(1)],
    ),
    "views_of_each_other": _own_batches(
        lambda: None, lambda self, i: (lambda x: [x, x[:1]])(torch.zeros(2))
    ),
    "shared_rows": _own_batches(lambda: torch.zeros(COUNT, 2).share_memory_()),
    "memo_handed_out": _own_batches(
        dict, lambda self, i: self.rows.setdefault(i, torch.zeros(2) + i)
    ),
}


@program
def one_batch_filled_again(load):
    """The program keeps batches, which are all the same tensor."""
    loader = load(dataset(lambda self, i: torch.zeros(2) + i), collate_fn=filled)
    kept = []
    for _ in range(3):
        kept += list(loader)
    return [batch.clone() for batch in kept]


@program
def batch_kept_by_the_dataset(load):
    """The dataset changes what it handed out last."""

    class Changing(Made):
        last = None

        def __getitem__(self, i):
            if self.last is not None:
                self.last.add_(1)
            self.last = torch.zeros(2)
            return self.last

    kept = [batch for _ in range(3) for batch in load(Changing(), batch_size=None)]
    return [batch.clone() for batch in kept]
