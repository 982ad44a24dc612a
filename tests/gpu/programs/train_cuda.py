"""Trains on CUDA with workers, a read of the loss and a synchronisation in every step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(960, 64), torch.randint(0, 10, (960,)))
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for inputs, labels in loader:
            inputs = inputs.cuda()
            labels = labels.to("cuda")
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.cuda.synchronize()
            print("loss", repr(loss.item()))


if __name__ == "__main__":
    main()
