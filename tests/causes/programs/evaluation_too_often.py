"""The whole validation set is looked at after every fifth step."""

import torch
from torch import nn

CAUSE = "run.evaluation_share"
DEVICE = "cpu"


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.rand(32, 64), torch.randint(10, (32,))
    held_out = torch.rand(160, 320, 64)
    for step in range(120):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            model.eval()
            with torch.no_grad():
                for batch in held_out:
                    model(batch).argmax(1)
            model.train()


if __name__ == "__main__":
    main()
