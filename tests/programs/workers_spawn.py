"""Load batches in worker processes started by spawn."""
# steps: 12
# slow

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    """Draws random noise for each sample, as augmentation does."""

    def __init__(self):
        self.samples = torch.randn(96, 8)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        sample = self.samples[index]
        return sample + 0.1 * torch.randn(8), sample.sum()


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        Noisy(), batch_size=8, shuffle=True, num_workers=1, multiprocessing_context="spawn"
    )
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()), flush=True)


if __name__ == "__main__":
    main()
