# %% fork_before_cuda
if (child := os.fork()) == 0:
    print(torch.ones(4).sum().item(), flush=True)
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
build()
train()

# %% pool_before_cuda
import multiprocessing

with multiprocessing.get_context("fork").Pool(2) as pool:
    numbers = pool.map(abs, range(-4, 0))
    build()
    train(6)
    print(numbers, pool.map(abs, [-5]), flush=True)
train(6)

# %% child_trains_on_cuda
child = os.fork()
if child == 0:
    build()
    train(4)
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
build()
train()

# %% fork_in_training
build()
for number in range(12):
    print(step(), flush=True)
    if number == 4:
        child = os.fork()
        if child == 0:
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

# %% fork_after_the_window
build()
train(10)
if (child := os.fork()) == 0:
    sys.exit(6)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
train(2)

# %% fork_and_leave_at_once
build()
train(5)
if (child := os.fork()) == 0:
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
train(7)

# %% child_asks_for_cuda
build()
train(5)
if (child := os.fork()) == 0:
    try:
        torch.ones(1, device="cuda")
    except RuntimeError as error:
        print("forked" in str(error), flush=True)
    os._exit(0)
os.waitpid(child, 0)
train(7)

# %% cpu_training_in_a_child
build()
train(12)
if (child := os.fork()) == 0:
    net = nn.Linear(8, 1)
    own = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    for _ in range(5):
        own.zero_grad()
        net(torch.ones(4, 8)).sum().backward()
        own.step()
    print(net.bias.item(), flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

# %% subprocess_in_training
import subprocess

build()
train(5)
print(subprocess.run(["/bin/echo", "hello"], capture_output=True, text=True).stdout, flush=True)
train(7)

# %% exec_itself steps=5
build()
train(5)
sys.stdout.flush()
os.execv("/bin/echo", ["echo", "replaced"])

# %% cuda_in_a_spawned_process cold
import torch.multiprocessing as multiprocessing

def work(queue):
    queue.put(torch.arange(4.0, device="cuda").sum().item())

if __name__ == "__main__":
    build()
    train(5)
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    process.join()
    print(queue.get(), process.exitcode)
    train(7)

# %% cuda_tensor_shared cold
import torch.multiprocessing as multiprocessing

def work(tensor, done):
    tensor.add_(1)
    torch.cuda.synchronize()
    done.set()

if __name__ == "__main__":
    build()
    train(5)
    context = multiprocessing.get_context("spawn")
    shared, done = torch.zeros(4, device="cuda"), context.Event()
    process = context.Process(target=work, args=(shared, done))
    process.start()
    process.join()
    print(done.is_set(), shared.tolist(), process.exitcode)
    train(7)

# %% distributed_gloo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
build()
inner, model = model, DistributedDataParallel(model, device_ids=[0])
train()
model = inner
dist.destroy_process_group()

# %% distributed_nccl loud
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

os.environ["NCCL_SOCKET_IFNAME"] = "lo"
device = torch.device("cuda", 0)
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
build()
inner, model = model, DistributedDataParallel(model, device_ids=[0])
for number in range(12):
    with model.no_sync() if number % 2 else torch.enable_grad():
        loss = model(torch.randn(4, 8, device="cuda")).square().mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
    print(total.item())
model = inner
dist.destroy_process_group()

# %% data_parallel
build()
inner, model = model, nn.DataParallel(model, device_ids=[0])
train()
model = inner
