"""A small training in which things happen at random steps: signals, forks, profilers, threads that
start and end, exceptions, patches, folders that vanish. `python random_events.py SEED`: the same
seed, the same output. Change what a seed does, and benchmarks/harm.py must run all of them again.
"""

import copy
import cProfile
import gc
import io
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

gc.freeze()  # a collection then takes no time for what torch holds
chance = random.Random(int(sys.argv[1]))
torch.manual_seed(chance.randrange(1000))
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
optimizer = chance.choice([torch.optim.SGD, torch.optim.Adam])(model.parameters(), lr=0.01)
later: list[tuple[int, Callable[[], None]]] = []  # (step, what ends then)
heard: list[int] = []
number = 0


def say(*words: object) -> None:
    print(*words, flush=True)


def step() -> float:
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss.item())


def fork() -> None:
    way = chance.choice(["exit", "leave", "raise", "exec", "kill", "train"])
    child = os.fork()
    if child == 0:
        if way == "exit":
            sys.exit(3)
        if way == "raise":
            raise ValueError("of a child")
        if way == "exec":
            os.execv("/bin/true", ["true"])
        if way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "train":
            say("child", step())
        os._exit(4)
    say("fork", way, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def thread_waits() -> None:
    """One that starts now and ends at a later step."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()

    def over() -> None:
        end.set()
        thread.join()

    later.append((number + chance.randrange(1, 8), over))


def thread_works() -> None:
    """One that trains, evaluates or profiles while this one waits for it."""

    def evaluate() -> None:
        with torch.no_grad():
            say("thread", model[0](torch.ones(4, 8)).sum().item())

    def profile() -> None:
        with torch.profiler.profile() as own:
            evaluate()
        say("thread", len([event for event in own.events() if event.name == "aten::linear"]))

    work = chance.choice([evaluate, profile, lambda: say("thread", step())])
    thread = threading.Thread(target=evaluate if profiling else work)
    thread.start()
    folder = f"/proc/self/task/{thread.native_id}"
    thread.join()
    while os.path.exists(folder):  # MKL hangs in a fork made while a thread that multiplied ends
        time.sleep(0.001)


profiling = False  # one at a time: torch crashes under two
stacks = False  # it records stacks


def reads_self(call: Any) -> bool:
    """Without, torch crashes as it records stacks."""
    return bool(call.__code__.co_argcount)


def profile() -> None:
    """One that records up to a later step."""
    global profiling, stacks
    if profiling:
        return
    profiling = True
    stacks = chance.random() < 0.3 and reads_self(nn.Module.__call__)
    own = torch.profiler.profile(record_shapes=chance.random() < 0.3, with_stack=stacks)
    own.start()

    def over() -> None:
        global profiling, stacks
        own.stop()
        profiling = stacks = False
        say("profiled", len([event for event in own.events() if event.name == "aten::linear"]))

    later.append((number + chance.randrange(1, 6), over))


def profile_python() -> None:
    own = cProfile.Profile()
    names = []
    if chance.random() < 0.5:
        own.runcall(step)
        names = [entry.code.co_name for entry in own.getstats() if not isinstance(entry.code, str)]
    else:
        sys.setprofile(lambda frame, *_: names.append(frame.f_code.co_name))
        step()
        sys.setprofile(None)
    say("profiled", len(names))


def send_signal() -> None:
    kind = chance.choice([signal.SIGUSR1, signal.SIGALRM, signal.SIGINT])
    try:
        os.kill(os.getpid(), kind)
        gc.collect()
        say("signals", heard)
    except KeyboardInterrupt:
        say("interrupted")


def fail() -> None:
    """An exception in a forward, a backward or a step, which the program catches."""
    where = chance.choice(["forward", "backward", "step"])

    def hook(*_: object) -> None:
        raise RuntimeError(where)

    if where == "forward":
        handle = model[2].register_forward_hook(hook)
    elif where == "backward":
        handle = model[0].weight.register_hook(hook)
    else:
        handle = optimizer.register_step_pre_hook(hook)
    try:
        step()
    except RuntimeError as error:
        say("caught", error)
    handle.remove()


def trace_python() -> None:
    names = []
    sys.settrace(lambda frame, *_: names.append(frame.f_code.co_filename))
    step()
    sys.settrace(None)
    say("traced", names.count(__file__))


def recurse() -> None:
    def deeper() -> float:
        return deeper()

    try:
        deeper()
    except RecursionError:
        say("recursed", step())


def patch() -> None:
    """A wrapper of the program's own around torch's function, up to a later step."""
    owner, name = chance.choice([(nn.Module, "__call__"), (torch.Tensor, "backward")])
    theirs, calls = getattr(owner, name), []

    def own(*given: Any, **named: Any) -> Any:
        calls.append(name)
        return theirs(*given, **named)

    def over() -> None:
        undone = getattr(owner, name) is own
        if undone:
            setattr(owner, name, theirs)
        say("patched", name, len(calls), undone)

    setattr(owner, name, own)
    later.append((number + chance.randrange(1, 6), over))


def hook_all() -> None:
    """A hook on every module, up to a later step."""
    calls: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, *_: calls.append(type(module).__name__)
    )

    def over() -> None:
        handle.remove()
        say("hooked", len(calls))

    later.append((number + chance.randrange(1, 6), over))


def lose_folder() -> None:
    """The working directory vanishes, up to a later step."""
    before = os.open(".", os.O_RDONLY)
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)

    def over() -> None:
        os.fchdir(before)
        os.close(before)
        say("folder", len(os.listdir()) > 0)

    later.append((number + chance.randrange(1, 6), over))


def load_in_worker() -> None:
    """Not while stacks are recorded: torch then gives the events of the loader's thread names
    that `events()` cannot decode."""
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, num_workers=not stacks)
    say("loaded", [x.sum().item() for (x,) in loader])


def copy_and_save() -> None:
    buffer = io.BytesIO()
    torch.save(copy.deepcopy(model).state_dict(), buffer)
    say("saved", len(buffer.getvalue()))


def epoch() -> None:
    for (x,) in DataLoader(TensorDataset(torch.randn(8, 8)), batch_size=4, shuffle=True):
        model(x).sum().backward()
        optimizer.step()


def end() -> None:
    """The program's last act."""
    way = chance.choice(
        ["fall", "exit", "raise", "leave", "terminate", "interrupt", "thread", "leave in thread"]
    )
    say("ends", way)
    if way == "exit":
        sys.exit(5)
    if way == "raise":
        raise ValueError("at the end")
    if way == "leave":
        os._exit(6)
    if way == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    if way == "interrupt":
        raise KeyboardInterrupt
    if way == "thread":
        threading.Thread(target=lambda: say("last", step())).start()
    if way == "leave in thread":
        threading.Thread(target=os._exit, args=(7,)).start()
        threading.Event().wait()


EVENTS: list[Callable[[], object]] = [
    *(fork, thread_waits, thread_works, profile, profile_python),
    *(send_signal, fail, copy_and_save, epoch, gc.collect),
    *(trace_python, recurse, patch, hook_all, lose_folder, load_in_worker),
]

for kind in (signal.SIGUSR1, signal.SIGALRM):
    signal.signal(kind, lambda received, _: heard.append(received))
for number in range(chance.randrange(14, 26)):
    say(number, step())
    for at, over in [one for one in later if one[0] <= number]:
        later.remove((at, over))
        over()
    if chance.random() < 0.4:
        chance.choice(EVENTS)()
for _, over in later:
    over()
say("weights", sum(p.double().sum().item() for p in model.parameters()), torch.rand(()).item())
end()
