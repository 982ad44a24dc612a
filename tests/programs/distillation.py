"""Train a student on the answers of a frozen teacher."""
# steps: 18
# slow

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 5)).eval()
teacher.requires_grad_(False)
student = nn.Linear(8, 5)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(144, 8)), batch_size=8, shuffle=True)

for (x,) in loader:
    with torch.no_grad():
        answers = teacher(x).softmax(dim=1)
    loss = nn.functional.kl_div(student(x).log_softmax(dim=1), answers, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", repr(loss.item()))
