# %% loader quick
from torch.utils.data import DataLoader, TensorDataset

for (x,) in DataLoader(TensorDataset(torch.randn(48, 8)), batch_size=4, shuffle=True):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())

# %% loader_with_workers
from torch.utils.data import DataLoader, TensorDataset

for _ in range(2):
    for (x,) in DataLoader(TensorDataset(torch.randn(24, 8)), batch_size=4, shuffle=True, num_workers=1):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        print(loss.item())

# %% worker_raises exit=1 loud
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        if index == 40:
            raise ValueError("in a worker")
        return torch.full((8,), float(index))

train(12)
for x in DataLoader(Data(), batch_size=4, num_workers=1):
    pass

# %% worker_draws_randomness
import random

from torch.utils.data import DataLoader, Dataset, get_worker_info

class Data(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.rand(2), random.random(), get_worker_info().id

train(12)
random.seed(1)
for item in DataLoader(Data(), batch_size=4, num_workers=2):
    print(item)

# %% iterable_dataset quick
from torch.utils.data import DataLoader, IterableDataset

class Data(IterableDataset):
    def __iter__(self):
        for number in range(48):
            yield torch.full((8,), number / 48)

for x in DataLoader(Data(), batch_size=4):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())

# %% samplers quick
from torch.utils.data import BatchSampler, DataLoader, Sampler, WeightedRandomSampler

class Backwards(Sampler):
    def __iter__(self):
        return iter(range(7, -1, -1))

    def __len__(self):
        return 8

train(12)
print(list(DataLoader(range(8), sampler=Backwards(), batch_size=3)))
print(list(DataLoader(range(8), batch_sampler=BatchSampler(Backwards(), 4, False))))
print(list(DataLoader(range(8), sampler=WeightedRandomSampler([1.0] * 8, 8), batch_size=8)))

# %% own_collate quick
from torch.utils.data import DataLoader

def collate(items):
    print("collate", items)
    return torch.tensor(items)

train(12)
print(list(DataLoader(range(8), batch_size=4, collate_fn=collate)))

# %% loader_subclass quick
from torch.utils.data import DataLoader

class Doubled(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield batch * 2

for x in Doubled(torch.randn(48, 8), batch_size=4):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())

# %% loader_abandoned
from torch.utils.data import DataLoader

train(12)
iterator = iter(DataLoader(torch.randn(48, 8), batch_size=4, num_workers=1))
print(next(iterator).sum().item())
del iterator

# %% two_loaders_zipped
from torch.utils.data import DataLoader

torch.manual_seed(4)
first, second = (DataLoader(torch.randn(48, 8), batch_size=4, shuffle=True) for _ in range(2))
for a, b in zip(first, second):
    optimizer.zero_grad()
    loss = (model(a) - model(b)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())

# %% dataset_counts_calls quick
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    calls = 0

    def __len__(self):
        return 48

    def __getitem__(self, index):
        self.calls += 1
        return torch.full((8,), self.calls / 48)

data = Data()
for x in DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
print(data.calls)

# %% getitems unfixed
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 8

    def __getitems__(self, indices):
        print("many", indices)
        return [torch.tensor(float(i)) for i in indices]

train(12)
print(list(DataLoader(Data(), batch_size=4)))

# %% transforms_that_count
from torch.utils.data import DataLoader, Dataset

class Shift:
    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x + self.calls

class Data(Dataset):
    def __init__(self):
        self.transform = Shift()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.transform(torch.zeros(2))

train(12)
data = Data()
print(list(DataLoader(data, batch_size=4)), data.transform.calls)

# %% nested_batches quick
from torch.utils.data import DataLoader

train(12)
items = [{"x": torch.ones(2), "y": [1, "a"], "z": (None,)} for _ in range(4)]
print(list(DataLoader(items, batch_size=2, collate_fn=lambda batch: {"all": batch})))

# %% generator_of_batches
def batches():
    for _ in range(12):
        yield torch.randn(4, 8)

for x in batches():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())

# %% seeded_generator quick
from torch.utils.data import DataLoader

generator = torch.Generator().manual_seed(5)
train(12)
for _ in range(2):
    print(list(DataLoader(range(8), batch_size=4, shuffle=True, generator=generator)))
print(generator.get_state().sum().item())

# %% random_split
from torch.utils.data import random_split

train(12)
print([list(part.indices) for part in random_split(range(8), [0.5, 0.5])])

# %% batches_without_training steps=0
from torch.utils.data import DataLoader

for x in DataLoader(torch.randn(48, 8), batch_size=4):
    print(x.sum().item())

# %% memory_mapped quick
import numpy

numpy.save("data.npy", numpy.arange(384, dtype="float32").reshape(48, 8) / 384)
data = numpy.load("data.npy", mmap_mode="r")
for number in range(12):
    optimizer.zero_grad()
    loss = model(torch.from_numpy(data[4 * number : 4 * number + 4].copy())).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
