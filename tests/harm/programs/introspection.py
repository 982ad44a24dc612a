# %% deepcopy_and_pickle quick
import copy
import pickle

train(6)
twin = copy.deepcopy(model)
again = pickle.loads(pickle.dumps(model))
x = torch.ones(4, 8)
print([net.eval()(x).sum().item() for net in (model, twin, again)], model.train().training)
train(6)

# %% saved_bytes
import io

train(6)
buffer = io.BytesIO()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
print(len(buffer.getvalue()), hashlib.sha256(buffer.getvalue()).hexdigest())
train(6)

# %% saved_model quick
import io

train(6)
buffer = io.BytesIO()
torch.save(model, buffer)
print(hashlib.sha256(buffer.getvalue()).hexdigest())
buffer.seek(0)
model = torch.load(buffer, weights_only=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train(6)

# %% optimizer_copied
import copy

train(6)
state = copy.deepcopy(optimizer.state_dict())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer.load_state_dict(state)
print(sorted(vars(optimizer)), sorted(optimizer.state_dict()))
train(6)

# %% reprs
from torch.utils.data import DataLoader

loader = DataLoader(range(8), batch_size=4)
train()
print(model, optimizer, sorted(vars(loader)), type(iter(loader)).__name__)

# %% attributes_of_objects quick
train()
print(sorted(vars(model)), sorted(vars(optimizer)), [name for name, _ in model.named_modules()])
print(sorted(vars(torch.optim.SGD)), len(model._forward_hooks), len(optimizer._optimizer_step_post_hooks))

# %% signatures quick
import inspect

train()
for function in (
    torch.autograd.backward,
    torch.autograd.grad,
    torch.save,
    torch.compile,
    torch.optim.Optimizer.__init__,
    torch.optim.Optimizer.zero_grad,
    torch.utils.data.DataLoader.__init__,
    torch.utils.data.DataLoader.__iter__,
    torch.nn.utils.clip_grad_norm_,
    nn.Module.__call__,
    torch.amp.GradScaler.scale,
):
    print(function.__name__, function.__qualname__, function.__module__, inspect.signature(function))
    print(hashlib.sha256(inspect.getsource(function).encode()).hexdigest())

# %% call_while_searching quick
import inspect

print(nn.Module.__call__.__qualname__, inspect.signature(nn.Module.__call__))
train(2)
print(nn.Module.__call__.__qualname__, inspect.isfunction(nn.Module.__call__))
print(type(model).__call__.__qualname__, type(model).__call__.__module__)
train(10)

# %% functions_pickled
import pickle

train()
for function in (torch.autograd.backward, torch.save, torch.nn.utils.clip_grad_norm_):
    print(pickle.loads(pickle.dumps(function)) is function)
print(len(pickle.dumps(optimizer)) > 0)

# %% weak_references quick
import gc
import weakref

train(6)
kept = weakref.ref(model), weakref.ref(optimizer)
scaler = torch.amp.GradScaler("cpu")
loss = model(torch.randn(4, 8)).square().mean()
scaler.scale(loss).backward()
kept = (weakref.ref(scaler), weakref.ref(loss))
del scaler, loss
gc.collect()
print([reference() is None for reference in kept])
train(6)

# %% models_are_freed quick
import gc
import weakref

references = []
for _ in range(12):
    net = nn.Sequential(nn.Linear(8, 1))
    own = torch.optim.SGD(net.parameters(), lr=0.1)
    loss = net(torch.randn(4, 8)).square().mean()
    loss.backward()
    own.step()
    references += [weakref.ref(net), weakref.ref(own), weakref.ref(loss), weakref.ref(net[0].weight)]
    del net, own, loss
gc.collect()
print([reference() is None for reference in references])

# %% garbage_collector_settings
import gc

gc.disable()
train()
print(gc.isenabled(), gc.get_threshold())

# %% graph_is_freed
import weakref

class Probe:
    pass

for _ in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    probe = Probe()
    loss.grad_fn.metadata["probe"] = probe
    reference = weakref.ref(probe)
    loss.backward()
    optimizer.step()
    del probe, loss
    print(reference() is None)

# %% random_state_untouched quick
import random

import numpy

random.seed(0)
numpy.random.seed(0)
for _ in range(12):
    print(step(), torch.rand(()).item(), random.random(), numpy.random.rand())
print(hash(random.getstate()), numpy.random.get_state()[2], torch.initial_seed())

# %% settings_untouched quick
train()
print(torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads(), torch.is_anomaly_enabled())
print(torch.are_deterministic_algorithms_enabled(), torch.is_inference_mode_enabled())
print(torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack())
print(torch.autograd.profiler._is_profiler_enabled, torch._C._autograd._profiler_enabled())

# %% main_module
import __main__

train()
print(__name__, __file__ == os.path.abspath(sys.argv[0]), __main__.step is step, __package__, __spec__)
print(sorted(name for name in vars(__main__) if not name.startswith("__")))

# %% own_frame
train()
frame = sys._getframe()
depth = 0
while frame is not None and frame.f_code.co_filename == __file__:
    frame, depth = frame.f_back, depth + 1
print(depth)

# %% audit_hook quick
events = []

def hook(event, args):
    if event in ("os.fork", "subprocess.Popen", "socket.connect", "os.remove"):
        events.append(event)

sys.addaudithook(hook)
train()
print(events)

# %% warnings_recorded quick
import warnings

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(12):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward(create_graph=True)
        optimizer.step()
        print(loss.item())
    torch.optim.lr_scheduler.StepLR(optimizer, 1).step()
    torch.autograd.backward(torch.ones((), requires_grad=True))
print([(w.category.__name__, os.path.basename(w.filename), str(w.message)[:40]) for w in caught])

# %% warnings_are_errors quick
import warnings

warnings.simplefilter("error")
train()
print(len(warnings.filters) > 0)

# %% anomaly_mode
with torch.autograd.set_detect_anomaly(True):
    train()

# %% anomaly_found exit=1 loud
with torch.autograd.set_detect_anomaly(True):
    train()
    x = torch.zeros(1, requires_grad=True)
    (torch.sqrt(x) * 0).sum().backward()

# %% deterministic_algorithms
torch.use_deterministic_algorithms(True)
train()

# %% tracemalloc loud
import tracemalloc

tracemalloc.start()
train()
print(tracemalloc.is_tracing())
tracemalloc.stop()

# %% faulthandler
import faulthandler

faulthandler.enable()
train()
print(faulthandler.is_enabled())

# %% timeit
import timeit

train(6)
print(timeit.timeit(step, number=6) > 0)

# %% doctest
import doctest

def doubled(x):
    """
    >>> doubled(2)
    4
    """
    return 2 * x

train()
print(doctest.testmod())

# %% unittest steps=13
import unittest

class Case(unittest.TestCase):
    def test_training(self):
        train()
        self.assertLess(step(), 100)

result = unittest.TextTestRunner(stream=open(os.devnull, "w")).run(
    unittest.defaultTestLoader.loadTestsFromTestCase(Case)
)
print(result.testsRun, result.wasSuccessful())

# %% logging
import logging

logging.basicConfig(stream=sys.stdout, format="%(filename)s:%(lineno)d %(funcName)s %(message)s")

class Model(nn.Sequential):
    def forward(self, x):
        logging.warning("forward")
        return super().forward(x)

model = Model(*model)
train()

# %% sys_modules_names
train()
print([name for name in ("pdb", "cProfile", "unittest", "pytest") if name in sys.modules])

# %% meta_path_and_hooks quick
train()
print(len(sys.path_hooks), sys.gettrace(), sys.getprofile(), sys.displayhook is sys.__displayhook__)
print(sys.excepthook is sys.__excepthook__, sys.getswitchinterval())

# %% slow_batches quick steps=40
import gc
import warnings

warnings.simplefilter("error")
ended = []

class Held:
    def __del__(self):
        ended.append(threading.get_ident() == threading.main_thread().ident)

def get_batch():
    held = Held()
    rows = [[(place * 31 + row) % 97 for place in range(40)] for row in range(60)]
    return held and len(rows)

for number in range(40):
    print(get_batch(), step(), threading.active_count(), gc.isenabled(), flush=True)
print(len(ended), all(ended), sys.gettrace(), sys.getprofile())

# %% slow_batches_and_forks quick steps=40
import warnings

warnings.simplefilter("error")
for number in range(40):
    print(sum((place * 31) % 97 for place in range(30_000)), step(), flush=True)
    if number % 6 == 5:
        child = os.fork()
        if child == 0:
            os._exit(len(sys._current_frames()) + 10 * (sys.getswitchinterval() < 0.005))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

# %% slow_batches_profiled quick steps=any problems=profiled_itself,no_window
import cProfile

for number in range(40):
    profile = cProfile.Profile()
    if number in (9, 10, 20):
        profile.enable()
    print(sum((place * 31) % 97 for place in range(30_000)), step(), flush=True)
    profile.disable()
    print(len(profile.getstats()) > 0, number in (9, 10, 20), flush=True)

# %% gc_callbacks
import gc

seen = []
gc.disable()
gc.callbacks.append(lambda phase, info: seen.append((phase, info["generation"])))
train()
gc.collect()
print(seen, len(gc.callbacks))

# %% gc_of_every_allocation quick
import gc

gc.set_threshold(1, 1, 1)
train()
print(gc.get_threshold())

# %% stepscope_forgotten quick
train(4)
for name in [name for name in sys.modules if name.startswith("stepscope")]:
    del sys.modules[name]
train(8)
