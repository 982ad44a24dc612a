# %% loader fix=pin,prefetch,workers=1
from torch.utils.data import DataLoader, TensorDataset

build()
loader = DataLoader(TensorDataset(torch.randn(24, 8)), batch_size=4, shuffle=True)
for _ in range(2):
    for (x,) in loader:
        print(update(model(x.cuda()).square().mean()))

# %% loader_with_everything steps=18 fix=prefetch
from torch.utils.data import DataLoader, TensorDataset

build()
data = TensorDataset(torch.randn(24, 8), torch.randn(24, 1))
loader = DataLoader(
    data, batch_size=4, shuffle=True, num_workers=2, pin_memory=True, persistent_workers=True, prefetch_factor=4
)
for _ in range(3):
    for x, y in loader:
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        print(update((model(x) - y).square().mean()))

# %% new_workers_each_epoch fix=persistent,pin,prefetch
from torch.utils.data import DataLoader, TensorDataset

build()
loader = DataLoader(TensorDataset(torch.randn(24, 8)), batch_size=4, shuffle=True, num_workers=1)
for _ in range(2):
    for (x,) in loader:
        print(update(model(x.to("cuda")).square().mean()))

# %% large_batches fix=recycle,pin
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return torch.full((8, 4096), index / 48)

build()
for x in DataLoader(Data(), batch_size=4, num_workers=1):
    print(update(model(x.cuda().mean(2)).square().mean()))

# %% samples_cached steps=24 fix=cache,prefetch,workers=1
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return torch.full((8,), index / 48), index % 2

build()
loader = DataLoader(Data(), batch_size=4)
for _ in range(2):
    for x, y in loader:
        loss = (model(x.cuda()).squeeze(1) - y.to("cuda").float()).square().mean()
        print(update(loss))

# %% random_samples_in_workers fix=pin,prefetch
import random

from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return torch.rand(8) + random.random()

random.seed(1)
build()
for x in DataLoader(Data(), batch_size=4, num_workers=2):
    print(update(model(x.cuda()).square().mean()))

# %% batches_of_dictionaries fix=pin,prefetch
from torch.utils.data import DataLoader

build()
data = [{"x": torch.randn(8), "y": [torch.randn(1), n]} for n in range(48)]
for batch in DataLoader(data, batch_size=4):
    x, (y, n) = batch["x"].cuda(), batch["y"]
    print(update((model(x) - y.cuda()).square().mean()), n.tolist())

# %% batches_that_pin_themselves
from torch.utils.data import DataLoader

class Batch:
    def __init__(self, items):
        self.x = torch.stack(items)

    def pin_memory(self):
        self.x = self.x.pin_memory()
        return self

build()
for batch in DataLoader(torch.randn(48, 8), batch_size=4, collate_fn=Batch, pin_memory=True):
    print(batch.x.is_pinned(), update(model(batch.x.cuda(non_blocking=True)).square().mean()))

# %% batch_changed_after_its_copy steps=24 fix=pin
from torch.utils.data import DataLoader

build()
for number, x in enumerate(DataLoader(torch.randn(96, 8), batch_size=4)):
    moved = x.to("cuda")
    if number > 5:
        x.fill_(float("nan"))
    print(update(model(moved).square().mean()))

# %% batches_kept_to_the_end fix=pin,prefetch
from torch.utils.data import DataLoader

build()
kept = []
for x in DataLoader(torch.randn(48, 8), batch_size=4):
    kept.append((x, moved := x.cuda()))
    print(update(model(moved).square().mean()))
print(all(torch.equal(x, moved.cpu()) for x, moved in kept))

# %% dataset_on_the_device
from torch.utils.data import DataLoader, TensorDataset

build()
for (x,) in DataLoader(TensorDataset(torch.randn(48, 8, device="cuda")), batch_size=4, shuffle=True):
    print(update(model(x).square().mean()))

# %% iterable_with_workers fix=pin
from torch.utils.data import DataLoader, IterableDataset

class Data(IterableDataset):
    def __iter__(self):
        for number in range(48):
            yield torch.full((8,), number / 48)

build()
for x in DataLoader(Data(), batch_size=4, num_workers=1):
    print(update(model(x.cuda()).square().mean()))

# %% left_early fix=pin,prefetch
from torch.utils.data import DataLoader, TensorDataset

build()
loader = DataLoader(TensorDataset(torch.randn(48, 8)), batch_size=4, shuffle=True)
for _ in range(4):
    for number, (x,) in enumerate(loader):
        if number == 3:
            break
        print(update(model(x.cuda()).square().mean()))

# %% spawned_workers cold fix=pin
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return torch.full((8,), index / 48)

if __name__ == "__main__":
    build()
    for x in DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context="spawn"):
        print(update(model(x.cuda()).square().mean()))

# %% worker_fails exit=1 loud
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 60:
            raise ValueError("in a worker")
        return torch.full((8,), index / 64)

build()
train(12)
for x in DataLoader(Data(), batch_size=4, num_workers=1, pin_memory=True):
    x.cuda(non_blocking=True)

# %% metrics_of_an_epoch fix=lazyitem,pin,prefetch
from torch.utils.data import DataLoader, TensorDataset

build()
loader = DataLoader(TensorDataset(torch.randn(24, 8)), batch_size=4)
for _ in range(2):
    total = 0.0
    for (x,) in loader:
        loss = model(x.cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
    print(total / 24)
