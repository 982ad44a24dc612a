# %% module_hooks quick loud
calls = []
model.register_forward_pre_hook(lambda *_: calls.append("before"))
model.register_forward_hook(lambda *_: calls.append("after"))
model.register_full_backward_hook(lambda *_: calls.append("backward"))
model[0].register_full_backward_pre_hook(lambda *_: calls.append("inner"))
train()
print(calls)

# %% global_module_hooks quick
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

names = []
register_module_forward_pre_hook(lambda module, _: names.append(type(module).__name__))
register_module_forward_hook(lambda module, *_: names.append(type(module).__name__))
train()
print(names)

# %% tensor_hooks
for _ in range(12):
    optimizer.zero_grad()
    out = model(torch.randn(4, 8))
    out.register_hook(lambda grad: grad * 2)
    loss = out.square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())

# %% optimizer_hooks quick
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

calls = []
optimizer.register_step_pre_hook(lambda *_: calls.append("own before"))
optimizer.register_step_post_hook(lambda *_: calls.append("own after"))
register_optimizer_step_pre_hook(lambda *_: calls.append("before"))
register_optimizer_step_post_hook(lambda *_: calls.append("after"))
train()
print(calls)

# %% saved_tensor_hooks
calls = []
with torch.autograd.graph.saved_tensors_hooks(
    lambda x: calls.append(tuple(x.shape)) or x, lambda x: x
):
    train()
print(calls)

# %% graph_node_hooks
for _ in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.grad_fn.register_hook(lambda *_: print("node"))
    loss.backward()
    optimizer.step()
    print(loss.item())

# %% state_dict_hooks
model.register_state_dict_post_hook(lambda *args: print("state", len(args[1])))
train()
model.state_dict()

# %% patched_module_call
before = nn.Module.__call__
nn.Module.__call__ = lambda self, *args, **kwargs: before(self, *args, **kwargs) * 1.5
train(6)
nn.Module.__call__ = before
train(6)

# %% patched_module_call_without_self problems=no_stacks quick
before = nn.Module.__call__
nn.Module.__call__ = lambda *args, **kwargs: before(*args, **kwargs) * 1.5
train()

# %% patched_backward quick
calls = []
before = torch.Tensor.backward
torch.Tensor.backward = lambda self, *args, **kwargs: calls.append(1) or before(self, *args, **kwargs)
train()
print(len(calls), torch.Tensor.backward.__name__)

# %% patched_item quick
before = torch.Tensor.item
calls = []

def item(self):
    calls.append(1)
    return before(self)

torch.Tensor.item = item
train()
print(len(calls))

# %% patched_step quick
before = torch.optim.SGD.step
calls = []

def counted(self, closure=None):
    calls.append(1)
    return before(self, closure)

torch.optim.SGD.step = counted
train()
print(len(calls))

# %% patched_instance_step
before = optimizer.step
optimizer.step = lambda: print("mine") or before()
train()

# %% patched_forward
before = model.forward
model.forward = lambda x: before(x) * 2
train()

# %% patched_zero_grad
torch.optim.Optimizer.zero_grad = lambda self, set_to_none=True: [
    p.grad.zero_() for group in self.param_groups for p in group["params"] if p.grad is not None
]
train()

# %% patched_save
import io

before = torch.save
torch.save = lambda *args, **kwargs: print("saving") or before(*args, **kwargs)
train(6)
torch.save(model.state_dict(), io.BytesIO())
torch.save = before
train(6)

# %% mock_patched
from unittest import mock

with mock.patch("torch.autograd.backward", wraps=torch.autograd.backward) as spy:
    train(6)
    print(spy.call_count)
train(6)

# %% tensor_subclass quick
class Tracked(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        calls.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, args, kwargs)

calls = []
for _ in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8).as_subclass(Tracked)).square().mean()
    loss.backward()
    optimizer.step()
print(calls)

# %% tensor_subclass_from_a_loader quick
class Tracked(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        calls.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, args, kwargs)

calls = []
data = [torch.full((8,), float(n)) for n in range(48)]
collate = lambda items: torch.stack(items).as_subclass(Tracked)
for x in torch.utils.data.DataLoader(data, batch_size=4, collate_fn=collate):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
print(calls)

# %% subclass_that_dispatches loud
from torch.utils._pytree import tree_map

class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        calls.append(str(function))
        unwrap = lambda x: x.inner if isinstance(x, Wrapped) else x
        return function(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))

calls = []
train(6)
print(Wrapped(torch.ones(4)).sum(), calls)
train(6)

# %% function_mode quick problems=no_stacks
from torch.overrides import TorchFunctionMode

class Watching(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        names.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))

names = []
with Watching():
    train()
print(names)

# %% function_mode_around_everything problems=no_stacks
from torch.overrides import TorchFunctionMode

class Watching(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        names.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))

names = []
with Watching():
    data = torch.utils.data.TensorDataset(torch.arange(384.0).view(48, 8) / 384)
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for (x,) in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        print(loss.item())
print(names)

# %% dispatch_mode quick
from torch.utils._python_dispatch import TorchDispatchMode

class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        names.append(str(function))
        return function(*args, **(kwargs or {}))

names = []
with Watching():
    train()
print(names)

# %% dispatch_mode_with_scaler quick
from torch.utils._python_dispatch import TorchDispatchMode

class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        names.append(str(function))
        return function(*args, **(kwargs or {}))

names = []
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
with Watching():
    for number in range(12):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
print(names)

# %% flop_counter
from torch.utils.flop_counter import FlopCounterMode

with FlopCounterMode(display=False) as counter:
    train()
print(counter.get_total_flops())

# %% default_device
torch.set_default_device("cpu")
train()

# %% fake_tensors steps=any
from torch._subclasses.fake_tensor import FakeTensorMode

train()
with FakeTensorMode():
    net = nn.Linear(8, 1)
    own = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        net(torch.randn(4, 8)).sum().backward()
        own.step()
train()

# %% meta_device
with torch.device("meta"):
    net = nn.Linear(8, 8)
print(net(torch.empty(2, 8, device="meta")).shape)
train()

# %% own_call_method
class Twice(nn.Sequential):
    def __call__(self, *args):
        return super().__call__(*args) * 2

model = Twice(*model)
train()

# %% class_changed_meanwhile
class First(nn.Sequential):
    pass

class Second(nn.Sequential):
    def forward(self, x):
        return super().forward(x) * 2

model = First(*model)
train(6)
model.__class__ = Second
train(6)

# %% metaclass
class Meta(type):
    def __call__(cls, *args, **kwargs):
        print("made", cls.__name__)
        return super().__call__(*args, **kwargs)

class Model(nn.Sequential, metaclass=Meta):
    pass

model = Model(*model)
train()

# %% parameters_overridden quick
class Shy(nn.Sequential):
    def parameters(self, recurse=True):
        calls.append(1)
        return super().parameters(recurse)

calls = []
model = Shy(*model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train()
print(len(calls))

# %% attribute_access_watched
class Watching(nn.Sequential):
    def __getattr__(self, name):
        if name == "unknown":
            print("asked")
        return super().__getattr__(name)

model = Watching(*model)
train()

# %% length_of_a_module
class Sized(nn.Sequential):
    def __bool__(self):
        raise TypeError("no truth value")

model = Sized(*model)
train()

# %% own_torch_profiler quick problems=no_window loud
with torch.profiler.profile() as own:
    losses = [step() for _ in range(12)]
print(losses, [event.name for event in own.events()])

# %% own_profiler_with_stacks quick steps=8 problems=no_window,profiled_itself loud
train(4)
with torch.profiler.profile(with_stack=True) as own:
    train(4)
names = sorted({event.name for event in own.events()})
print([name for name in names if "stepscope" in name or name.startswith("aten")])
train(4)

# %% own_profiler_of_each_step problems=no_window loud
for _ in range(12):
    with torch.profiler.profile() as own:
        print(step())
    print(len(own.events()))

# %% record_function_of_its_own loud
for _ in range(12):
    with torch.profiler.record_function("mine"):
        print(step())

# %% emit_itt_and_nvtx_left_alone
with torch.autograd.profiler.record_function("outer"):
    train()

# %% execution_observer steps=12 loud
from torch.profiler import ExecutionTraceObserver

train(6)
observer = ExecutionTraceObserver()
observer.register_callback("trace.json")
observer.start()
train(6)
observer.stop()
observer.unregister_callback()
print(os.path.exists("trace.json"))

# %% cprofile quick steps=8 problems=profiled_itself,no_window
import cProfile
import pstats

train(4)
profiler = cProfile.Profile()
profiler.enable()
for _ in range(4):
    step()
profiler.disable()
seen = pstats.Stats(profiler).stats
print(sorted((os.path.basename(f), name, calls[0]) for (f, _, name), calls in seen.items()))
train(4)

# %% cprofile_of_a_whole_loop steps=any problems=profiled_itself
import cProfile
import pstats

profiler = cProfile.Profile()
data = torch.utils.data.TensorDataset(torch.arange(384.0).view(48, 8))

def work():
    for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

profiler.runcall(work)
seen = pstats.Stats(profiler).stats
print(sorted((os.path.basename(f), name) for f, _, name in seen))

# %% cprofile_inside_own_profiler steps=4 loud problems=no_window,profiled_itself
import cProfile

own = torch.profiler.profile(with_stack=True)
train(2)
own.start()
profiler = cProfile.Profile()
profiler.runcall(step)
print(sorted(str(entry.code)[:20] for entry in profiler.getstats() if isinstance(entry.code, str)))
print(sorted(e.code.co_name for e in profiler.getstats() if not isinstance(e.code, str)))
step()
own.stop()
step()

# %% cprofile_while_stacks_are_recorded steps=11 problems=no_stacks,profiled_itself
import cProfile

train(7)
profiler = cProfile.Profile()
profiler.runcall(step)
print(sorted(e.code.co_name for e in profiler.getstats() if not isinstance(e.code, str)))
train(4)

# %% setprofile_while_stacks_are_recorded steps=11 problems=no_stacks,profiled_itself
calls = []

def profile(frame, event, argument):
    calls.append((event, frame.f_code.co_name))

train(7)
sys.setprofile(profile)
step()
sys.setprofile(None)
print(calls)
train(4)
print(sys.setprofile)

# %% setprofile quick steps=8 problems=profiled_itself,no_window
calls = []

def profile(frame, event, argument):
    if event == "call":
        calls.append(frame.f_code.co_name)

train(4)
sys.setprofile(profile)
for _ in range(4):
    step()
sys.setprofile(None)
print(calls)
train(4)

# %% setprofile_in_a_thread steps=any problems=profiled_itself
calls = []

def profile(frame, event, argument):
    if event == "call":
        calls.append(frame.f_code.co_name)

def evaluate():
    with torch.no_grad():
        model(torch.ones(4, 8))

threading.setprofile(profile)
train(6)
thread = threading.Thread(target=evaluate)
thread.start()
thread.join()
threading.setprofile(None)
print("forward" in calls, any("timed" in name for name in calls))
train(6)

# %% settrace
lines = []

def trace(frame, event, argument):
    if frame.f_code.co_filename == __file__:
        lines.append(event)
        return trace

sys.settrace(trace)
train()
sys.settrace(None)
print(lines)

# %% patched_grad_mode
calls = []
theirs = torch.is_grad_enabled
torch.is_grad_enabled = lambda: calls.append(1) or theirs()
train()
print(len(calls))

# %% optimizer_hooks_cleared steps=any
train(3)
hooks = sys.modules["torch.optim.optimizer"]
hooks._global_optimizer_pre_hooks.clear()
hooks._global_optimizer_post_hooks.clear()
train(9)

# %% unhashable_module quick
class Odd(nn.Module):
    __hash__ = None

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 1)

    def __eq__(self, other):
        raise TypeError("not to be compared")

    def __bool__(self):
        raise TypeError("no truth value")

    def forward(self, x):
        return self.inner(x)

odd = Odd()
own = torch.optim.SGD(odd.inner.parameters(), lr=0.01)
for _ in range(12):
    loss = odd(torch.randn(4, 8)).square().mean()
    own.zero_grad()
    loss.backward()
    own.step()
    print(loss.item())
