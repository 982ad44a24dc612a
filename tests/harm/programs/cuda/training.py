# %% scaler_that_skips steps=24 fix=fused_optimizer,nosync
build()
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**24, growth_interval=4)
for number in range(24):
    with torch.autocast("cuda", torch.float16):
        loss = model(torch.randn(4, 8, device="cuda")).float().square().mean()
    optimizer.zero_grad()
    scaler.scale(loss * (float("inf") if number == 15 else 1)).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    torch.cuda.synchronize()
    print(loss.item(), norm.item(), scaler.get_scale())

# %% bf16_autocast fix=fused_optimizer,cuda_graph
build()
for _ in range(12):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(torch.randn(4, 8, device="cuda")).float().square().mean()
    print(update(loss))

# %% bf16_weights
build()
model.bfloat16()
for _ in range(12):
    print(update(model(torch.randn(4, 8, device="cuda", dtype=torch.bfloat16)).float().square().mean()))

# %% convolutions fix=channels_last,amp=bf16,tf32=off,cuda_graph
model = nn.Sequential(
    nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
)
build()
for _ in range(12):
    x, y = torch.randn(8, 3, 16, 16, device="cuda"), torch.randint(0, 4, (8,), device="cuda")
    print(update(nn.functional.cross_entropy(model(x), y)))

# %% channels_last_by_itself
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
build()
model.to(memory_format=torch.channels_last)
for _ in range(12):
    x = torch.randn(8, 3, 16, 16, device="cuda").to(memory_format=torch.channels_last)
    print(update(model(x).square().mean()), x.is_contiguous(memory_format=torch.channels_last))

# %% repeated_blocks fix=checkpointing,amp=bf16
model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.1)) for _ in range(4)])
build()
train()

# %% attention fix=sdpa,amp=bf16
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(16, 2, batch_first=True), nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(x + self.attention(x, x, x)[0])

model = nn.Sequential(Block(), Block())
build()
for _ in range(12):
    print(update(model(torch.randn(4, 8, 16, device="cuda")).square().sum(-1).log().mean()))

# %% fused_attention steps=12
torch.use_deterministic_algorithms(True)
build()
weight = nn.Parameter(torch.randn(16, 48, device="cuda") / 4)
own = torch.optim.AdamW([weight], lr=0.01, fused=True)
for _ in range(12):
    own.zero_grad()
    q, k, v = (torch.randn(2, 4, 32, 16, device="cuda") @ weight).chunk(3, -1)
    loss = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean()
    loss.backward()
    own.step()
    print(loss.item())

# %% recurrent
net = nn.LSTM(8, 16, num_layers=2, dropout=0.2, batch_first=True).cuda()
own = torch.optim.Adam(net.parameters(), lr=0.01)
for _ in range(12):
    own.zero_grad()
    out, _ = net(torch.randn(4, 6, 8, device="cuda"))
    loss = out.square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    own.step()
    print(loss.item())

# %% fused_adamw fix=nosync
build()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
for _ in range(12):
    print(step())
    torch.cuda.synchronize()

# %% foreach_and_plain steps=24
build()
for foreach in (True, False):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=foreach)
    train()

# %% capturable
build()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)
train()
print(optimizer.state[model[0].weight]["step"].item())

# %% lbfgs
build()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
x = torch.randn(4, 8, device="cuda")

def closure():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss

for _ in range(12):
    print(optimizer.step(closure).item())

# %% adversarial
build()
other = nn.Sequential(nn.Linear(4, 8), nn.Tanh()).cuda()
others = torch.optim.Adam(other.parameters(), lr=0.01)
for _ in range(12):
    fake = other(torch.randn(4, 4, device="cuda"))
    loss = update((model(fake.detach()) - model(torch.randn(4, 8, device="cuda"))).mean())
    others.zero_grad()
    gain = -model(fake).mean()
    gain.backward()
    others.step()
    print(loss, gain.item())

# %% accumulation
build()
for number in range(24):
    loss = model(torch.randn(4, 8, device="cuda")).square().mean() / 2
    loss.backward()
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
    print(loss.item())

# %% checkpointed
from torch.utils.checkpoint import checkpoint

class Checkpointed(nn.Sequential):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)

build()
model = Checkpointed(*model)
train()

# %% optimizer_in_backward
build()
each = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

def apply(parameter):
    each[parameter].step()
    each[parameter].zero_grad()

for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(apply)
for _ in range(12):
    loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    loss.backward()
    print(loss.item())

# %% custom_function
class Cube(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad

build()
for _ in range(12):
    print(update(Cube.apply(model(torch.randn(4, 8, device="cuda"))).square().mean()))

# %% saved_on_the_host
build()
with torch.autograd.graph.save_on_cpu(pin_memory=True):
    train()

# %% saved_tensor_hooks
build()
shapes = []
with torch.autograd.graph.saved_tensors_hooks(
    lambda x: shapes.append(tuple(x.shape)) or x.cpu(), lambda x: x.cuda()
):
    train()
print(shapes)

# %% inference
build()
model.eval()
with torch.inference_mode():
    for _ in range(12):
        print(model(torch.randn(4, 8, device="cuda")).sum().item())

# %% train_and_evaluate fix=cuda_graph
build()
for _ in range(4):
    train(3)
    model.eval()
    with torch.no_grad():
        print(model(torch.ones(4, 8, device="cuda")).sum().item())
    model.train()

# %% scripted loud
build()
model = torch.jit.script(model)
train()

# %% traced loud
build()
model = torch.jit.trace(model, torch.randn(4, 8, device="cuda"), check_trace=False)
train()

# %% vmap_of_grad
from torch.func import grad, vmap

weight = torch.randn(8, device="cuda")
for _ in range(12):
    x = torch.randn(4, 8, device="cuda")
    each = vmap(grad(lambda w, x: (w * x).sum().square()), in_dims=(None, 0))(weight, x)
    weight = weight - 0.01 * each.mean(0)
    print(weight.sum().item())
build()
train()

# %% gradients_clipped_and_scheduled
build()
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
for _ in range(12):
    loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    scheduler.step()
    print(loss.item(), norm.item(), scheduler.get_last_lr())

# %% averaged_weights
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

build()
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
for _ in range(12):
    print(step())
    average.update_parameters(model)
print(average.module[0].weight.sum().item())

# %% gradient_penalty
build()
for _ in range(12):
    x = torch.randn(4, 8, device="cuda", requires_grad=True)
    out = model(x)
    (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    print(update(out.square().mean() + gradient.square().mean()))

# %% saved_and_loaded steps=24
import io

build()
train()
buffer = io.BytesIO()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
print(hashlib.sha256(buffer.getvalue()).hexdigest())
buffer.seek(0)
state = torch.load(buffer, map_location="cuda")
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
train()

# %% dispatch_mode
from torch.utils._python_dispatch import TorchDispatchMode

class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        names.append(str(function))
        return function(*args, **(kwargs or {}))

build()
names = []
with Watching():
    train()
print(names)

# %% function_mode problems=no_stacks
from torch.overrides import TorchFunctionMode

class Watching(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        names.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))

build()
names = []
with Watching():
    train()
print(names)

# %% objects_are_freed
import weakref

references = []
for _ in range(12):
    net = nn.Linear(8, 1).cuda()
    own = torch.optim.SGD(net.parameters(), lr=0.1)
    loss = net(torch.randn(4, 8, device="cuda")).square().mean()
    loss.backward()
    own.step()
    references += [weakref.ref(net), weakref.ref(own), weakref.ref(net.weight)]
    del net, own, loss
gc.collect()
print([reference() is None for reference in references])
