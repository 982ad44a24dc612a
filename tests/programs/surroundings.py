"""Print what a program sees of its surroundings, train a little, and exit with 7."""
# cold
# steps: 10
# arguments: --rate 0.05 --name=a\ b -- -x --steps 3
# stdin: first line\nsecond line\n

names = sorted(globals())

import inspect  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402


def describe():
    print("globals", names)
    print("argv", sys.argv)
    print("file", __file__)
    print("name", __name__, __package__, __spec__)
    print("doc", __doc__)
    print("main", sys.modules["__main__"].__dict__ is globals(), type(__loader__).__name__)
    print("cwd", os.getcwd())
    print("path", sys.path)
    print("environment", sorted(os.environ.items()))
    print("executable", sys.executable, sys.flags)
    print("source", inspect.getsource(describe).splitlines()[0])
    print("stdin", sys.stdin.read().splitlines(), sys.stdin.isatty())


describe()
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[2]))
for _ in range(10):
    x = torch.randn(8, 4)
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", repr(loss.item()))
sys.exit(7)
