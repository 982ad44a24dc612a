"""Print what a program can know of the Python it runs in, train a little, and exit with 7."""

names = sorted(globals())
import sys  # noqa: E402

modules = [name for name in ("sitecustomize", "usercustomize") if name in sys.modules]

import hashlib  # noqa: E402
import inspect  # noqa: E402
import io  # noqa: E402
import os  # noqa: E402
import pickle  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import threading  # noqa: E402
import warnings  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 1)

    def forward(self, x):
        warnings.warn("careful", stacklevel=1)
        return self.line(x)


def describe():
    print("globals", names)
    print("modules", modules)
    print("argv", sys.argv)
    print("main", __file__, __name__, __package__, __spec__, type(__loader__).__name__)
    print("path", sys.path)
    print("environment", sorted(os.environ.items()))
    print("flags", sys.flags, sys.warnoptions, sys.executable, sys.orig_argv[-1])
    print(
        "threads", threading.main_thread() is threading.current_thread(), threading.active_count()
    )
    print("signals", [str(signal.getsignal(number)) for number in range(1, 32)])
    print("hooks", sys.gettrace(), sys.getprofile(), sys.excepthook is sys.__excepthook__)
    print("stdin", sys.stdin.read().splitlines(), sys.stdin.isatty(), sys.stdout.isatty())
    print("source", inspect.getsource(describe).splitlines()[0])
    print("cwd", os.getcwd(), os.getpgrp() == os.getpgid(os.getppid()))
    code = "import os, sys; print('child', os.environ, sys.path, 'stepscope' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def train(model, optimizer):
    for _ in range(4):
        x = torch.randn(8, 4)
        loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()))


def kept(model, optimizer):
    """What survives pickling and saving is the same to the byte."""
    saved = io.BytesIO()
    torch.save(model, saved)
    print("saved", hashlib.sha256(saved.getvalue()).hexdigest())
    print("pickle", pickle.loads(pickle.dumps(model)).state_dict())
    print("state", sorted(vars(model)), sorted(vars(optimizer)), list(model.state_dict()))
    try:
        import cloudpickle
    except ImportError:
        return
    copy = pickle.loads(cloudpickle.dumps(model))
    print("cloudpickle", copy(torch.ones(1, 4)).item() == model(torch.ones(1, 4)).item())


describe()
torch.manual_seed(0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    net = Net()
    sgd = torch.optim.SGD(net.parameters(), lr=0.05)
    train(net, sgd)
    kept(net, sgd)
print(
    "warnings", [(str(one.message), os.path.basename(one.filename), one.lineno) for one in caught]
)
print("random", torch.rand(1).item())
sys.exit(7)
