# %% exit_code exit=7
build()
train()
sys.exit(7)

# %% exception_in_the_loop exit=1 steps=6
build()
for number in range(12):
    if number == 6:
        raise ValueError("in the loop")
    print(step(), flush=True)

# %% terminated exit=-15 steps=any
import signal

build()
train(8)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)

# %% terminated_with_a_handler exit=3 steps=14
import signal

def handle(*_):
    print("last", step(), flush=True)
    torch.cuda.synchronize()
    sys.exit(3)

signal.signal(signal.SIGTERM, handle)
build()
train(13)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)

# %% interrupted exit=-2 loud steps=8
import signal

build()
train(8)
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)

# %% killed exit=-9 steps=any
import signal

build()
train(8)
os.kill(os.getpid(), signal.SIGKILL)

# %% leave_at_once exit=9 steps=any
build()
train()
sys.stdout.flush()
os._exit(9)

# %% abort exit=-6 loud steps=any
build()
train()
os.abort()

# %% out_of_memory_caught
build()
for number in range(12):
    print(step())
    if number == 6:
        try:
            torch.empty(1 << 44, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            print(type(error).__name__)
            torch.cuda.empty_cache()

# %% out_of_memory_in_a_step
build()
torch.cuda.set_per_process_memory_fraction(0.01)
for number in range(12):
    try:
        x = torch.randn(4, 8, device="cuda")
        if number == 6:
            x = x.repeat(1 << 24, 1)
        print(update(model(x).square().mean()))
    except torch.OutOfMemoryError:
        x = None
        torch.cuda.empty_cache()
        print("too much", step())

# %% out_of_memory exit=1 loud steps=6
build()
train(6)
torch.empty(1 << 44, device="cuda")

# %% device_assert exit=1 loud steps=any
build()
train(8)
table = torch.zeros(4, device="cuda")
print(table[torch.tensor([9], device="cuda")].sum().item())

# %% device_assert_caught exit=any loud steps=any
build()
train(8)
try:
    torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")].sum().item()
except RuntimeError as error:
    print(type(error).__name__, flush=True)
os._exit(5)

# %% device_assert_in_a_step exit=1 loud steps=any
build()
train(8)
table = nn.Embedding(4, 8).cuda()
loss = model(table(torch.tensor([1, 9], device="cuda"))).square().mean()
update(loss)
train(4)

# %% computes_at_exit
@atexit.register
def last():
    print("at exit", model.eval()(torch.ones(4, 8, device="cuda")).sum().item(), flush=True)

build()
train()

# %% finalizers_compute cold
import weakref

class Holder:
    pass

def finalize(x):
    print("finalized", (x * 2).sum().item(), flush=True)

holder = Holder()
weakref.finalize(holder, finalize, torch.ones(4, device="cuda"))
build()
train()

# %% deleted_at_the_end cold loud
class Holder:
    def __init__(self):
        self.x = torch.ones(4, device="cuda")
        self.stream = torch.cuda.Stream()
        self.event = torch.cuda.Event()
        self.event.record(self.stream)

    def __del__(self):
        self.stream.synchronize()
        os.write(1, b"deleted\n")

build()
holder = Holder()
train()
sys.stdout.flush()

# %% work_under_way_at_the_end cold
build()
train()
x = torch.randn(2048, 2048, device="cuda")
for _ in range(50):
    x = torch.tanh(x @ x)

# %% excepthook exit=1 steps=8
sys.excepthook = lambda kind, error, trace: print("hook", kind.__name__, step(), flush=True)
build()
train(7)
raise KeyError("mine")
