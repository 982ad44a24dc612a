# %% plain quick
train()

# %% plain_without_window options=--no-window
train()

# %% plain_detected_window steps=60 options=
train(60)

# %% two_runs_in_one steps=24
train()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
train()

# %% lbfgs_closure quick
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
x = torch.randn(4, 8)

def closure():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss

for _ in range(12):
    print(optimizer.step(closure).item())

# %% adversarial quick
other = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
others = torch.optim.Adam(other.parameters(), lr=0.01)
for _ in range(12):
    fake = other(torch.randn(4, 4))
    optimizer.zero_grad()
    loss = (model(fake.detach()) - model(torch.randn(4, 8))).mean()
    loss.backward()
    optimizer.step()
    others.zero_grad()
    gain = -model(fake).mean()
    gain.backward()
    others.step()
    print(loss.item(), gain.item())

# %% accumulation quick
for number in range(24):
    loss = model(torch.randn(4, 8)).square().mean() / 2
    loss.backward()
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
    print(loss.item())

# %% two_models_in_turn steps=24
other = nn.Linear(8, 1)
others = torch.optim.SGD(other.parameters(), lr=0.1)
for net, own in ((model, optimizer), (other, others)):
    for _ in range(12):
        own.zero_grad()
        loss = net(torch.randn(4, 8)).square().mean()
        loss.backward()
        own.step()
        print(loss.item())

# %% optimizer_in_backward quick
from torch.optim import SGD

each = {p: SGD([p], lr=0.01) for p in model.parameters()}

def update(parameter):
    each[parameter].step()
    each[parameter].zero_grad()

for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(update)
for _ in range(12):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    print(loss.item())

# %% autograd_grad_alone quick
for _ in range(12):
    loss = model(torch.randn(4, 8)).square().mean()
    with torch.no_grad():
        for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
            p -= 0.01 * g
    print(loss.item())

# %% autograd_grad_without_a_module quick
weight = torch.randn(8, 1, requires_grad=True)
for _ in range(12):
    loss = (torch.randn(4, 8) @ weight).square().mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    weight = (weight - 0.01 * gradient).detach().requires_grad_()
    print(loss.item())

# %% second_derivative_without_a_module
weight = torch.randn(8, 1, requires_grad=True)
for _ in range(12):
    loss = (torch.randn(4, 8) @ weight).pow(4).mean()
    (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
    (curvature,) = torch.autograd.grad(gradient.sum(), weight)
    weight = (weight - 0.01 * gradient / (1 + curvature.abs())).detach().requires_grad_()
    print(loss.item())

# %% gradient_penalty quick
for _ in range(12):
    x = torch.randn(4, 8, requires_grad=True)
    optimizer.zero_grad()
    out = model(x)
    (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    loss = out.square().mean() + gradient.square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())

# %% backward_alone
for _ in range(12):
    model.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.01 * p.grad
    print(loss.item())

# %% functional_grad steps=0
from torch.func import functional_call, grad_and_value

model.eval()
weights = {name: p.detach() for name, p in model.named_parameters()}

def loss_of(weights, x):
    return functional_call(model, weights, (x,)).square().mean()

for _ in range(12):
    gradients, loss = grad_and_value(loss_of)(weights, torch.randn(4, 8))
    weights = {name: weights[name] - 0.01 * gradients[name] for name in weights}
    print(loss.item())

# %% vmap_of_grad
from torch.func import grad, vmap

weight = torch.randn(8)
for _ in range(12):
    per_sample = vmap(grad(lambda w, x: (w @ x).square()), in_dims=(None, 0))(weight, torch.randn(4, 8))
    weight = weight - 0.01 * per_sample.mean(0)
    print(weight.sum().item())
train()

# %% jacobian_and_hessian
from torch.func import hessian, jacrev

train(6)
print(jacrev(lambda x: x.pow(3))(torch.ones(2)), hessian(lambda x: x.pow(3).sum())(torch.ones(2)))
train(6)

# %% custom_function
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad

for _ in range(12):
    optimizer.zero_grad()
    loss = Cube.apply(model(torch.randn(4, 8))).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())

# %% double_backward
for _ in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward(create_graph=True)
    penalty = sum(p.grad.square().sum() for p in model.parameters())
    penalty.backward()
    optimizer.step()
    print(loss.item(), penalty.item())

# %% retained_graph
for _ in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()
    print(loss.item())

# %% checkpointed quick
from torch.utils.checkpoint import checkpoint

class Checkpointed(nn.Sequential):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)

model = Checkpointed(*model)
train()

# %% checkpointed_reentrant
from torch.utils.checkpoint import checkpoint

inner, model = model, nn.Identity()
for _ in range(12):
    optimizer.zero_grad()
    x = torch.randn(4, 8, requires_grad=True)
    loss = checkpoint(inner, x, use_reentrant=True).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
model = inner

# %% autocast quick
for _ in range(12):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(4, 8)).float().square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())

# %% loss_scaler quick
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for number in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    scaler.scale(loss * (float("inf") if number == 5 else 1)).backward()
    scaler.step(optimizer)
    scaler.update()
    print(loss.item(), scaler.get_scale())

# %% compiled_eagerly loud
model = torch.compile(model, backend="eager")
train()
model = model._orig_mod

# %% compiled_step loud
step = torch.compile(step, backend="eager")
train()

# %% scripted loud
model = torch.jit.script(model)
train()

# %% traced quick loud
model = torch.jit.trace(model, torch.randn(4, 8), check_trace=False)
print(model.graph)
train()

# %% gradients_clipped
for _ in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    print(loss.item(), nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
    optimizer.step()

# %% scheduled
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
for _ in range(12):
    print(step(), scheduler.get_last_lr())
    scheduler.step()

# %% averaged_weights
from torch.optim.swa_utils import AveragedModel

average = AveragedModel(model)
for _ in range(12):
    print(step())
    average.update_parameters(model)
print(average.module[0].weight.sum().item())

# %% inference quick
model.eval()
with torch.inference_mode():
    for _ in range(12):
        print(model(torch.randn(4, 8)).sum().item())

# %% train_and_evaluate quick
for _ in range(4):
    train(3)
    model.eval()
    with torch.no_grad():
        print(model(torch.ones(4, 8)).sum().item())
    model.train()

# %% asynchronous
import asyncio

async def work():
    for _ in range(12):
        await asyncio.sleep(0)
        print(step())

asyncio.run(work())

# %% asynchronous_in_executor problems=no_window
import asyncio
from concurrent.futures import ThreadPoolExecutor

async def work():
    loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(1)
    for _ in range(12):
        print(await loop.run_in_executor(pool, step))

asyncio.run(work())

# %% recursive_network
class Recursive(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(8, 8)

    def forward(self, x, depth=20):
        return self(torch.tanh(self.cell(x)), depth - 1) if depth else x

model = Recursive()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train()

# %% nested_modules quick
class Wrap(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)

for _ in range(225):
    model = Wrap(model)
train()
for _ in range(225):
    model = model.inner

# %% nested_modules_with_fix fix=threads=1
class Wrap(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)

for _ in range(225):
    model = Wrap(model)
train()
for _ in range(225):
    model = model.inner

# %% sparse_gradients
table = nn.Embedding(16, 8, sparse=True)
own = torch.optim.SparseAdam(list(table.parameters()), lr=0.1)
for _ in range(12):
    own.zero_grad()
    loss = table(torch.randint(0, 16, (4,))).square().mean()
    loss.backward()
    own.step()
    print(loss.item())

# %% lazy_modules
model = nn.Sequential(nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.Linear(16, 1))
model(torch.randn(4, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train()

# %% several_losses
for _ in range(12):
    optimizer.zero_grad()
    losses = [model(torch.randn(4, 8)).square().mean() for _ in range(2)]
    torch.autograd.backward(losses)
    optimizer.step()
    print([loss.item() for loss in losses])

# %% double_precision
model.double()
for _ in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8, dtype=torch.float64)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())

# %% complex_numbers
weight = torch.randn(8, dtype=torch.complex64, requires_grad=True)
own = torch.optim.SGD([weight], lr=0.1)
for _ in range(12):
    own.zero_grad()
    loss = (weight * torch.randn(4, 8)).abs().square().mean()
    loss.backward()
    own.step()
    print(loss.item())

# %% foreach_fix fix=foreach
train()

# %% threads_fix fix=threads=1 quick
train()

# %% interleaved_generators steps=6
def training(net):
    own = torch.optim.SGD(net.parameters(), lr=0.1)
    while True:
        own.zero_grad()
        yield "begun"
        loss = net(torch.ones(4, 8)).square().mean()
        yield "forward"
        loss.backward()
        yield "backward"
        own.step()
        yield loss.item()

sources = [training(nn.Linear(8, 1)) for _ in range(2)]
for _ in range(24):
    print([next(source) for source in sources])

# %% meta_by_default
train(4)
torch.set_default_device("meta")
net = nn.Linear(8, 1)
own = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    own.zero_grad()
    loss = net(torch.randn(4, 8)).square().mean()
    loss.backward()
    own.step()
    print(loss.shape, loss.device)
torch.set_default_device(None)
train(4)

# %% inference_mode_around_all
with torch.inference_mode():
    for _ in range(3):
        with torch.inference_mode(False):
            train(4)
    print(model(torch.randn(4, 8)).sum().item())
