# %% exit_code exit=7 quick
train()
sys.exit(7)

# %% exit_with_text exit=1 quick
train()
sys.exit("something is wrong")

# %% exit_large_code exit=44
train()
sys.exit(300)

# %% exit_without_a_code exit=0
train()
raise SystemExit

# %% leave_at_once exit=9 quick steps=any
train()
sys.stdout.flush()
os._exit(9)

# %% abort exit=-6 loud steps=any
train()
os.abort()

# %% exception_after_training exit=1 quick
train()
raise ValueError("at the end")

# %% exception_in_a_forward exit=1 quick steps=6
class Failing(nn.Module):
    def forward(self, x):
        if len(losses) == 6:
            raise RuntimeError("in a forward")
        return x

losses = []
model = nn.Sequential(model, Failing())
for _ in range(12):
    losses.append(step())
    print(losses[-1], flush=True)

# %% exception_in_a_backward exit=1 steps=6
class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if len(losses) == 6:
            raise RuntimeError("in a backward")
        return grad

losses = []
for _ in range(12):
    optimizer.zero_grad()
    loss = Failing.apply(model(torch.randn(4, 8))).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    print(losses[-1], flush=True)

# %% exception_caught_each_step quick
import traceback

for number in range(12):
    print(step())
    try:
        model(torch.randn(4, 3))
    except RuntimeError as error:
        print(len(traceback.extract_tb(error.__traceback__)), str(error)[:40])

# %% traceback_of_backward
import traceback

for number in range(12):
    print(step())
    try:
        torch.ones(2, requires_grad=True).backward()
    except RuntimeError as error:
        print([frame.name for frame in traceback.extract_tb(error.__traceback__)])

# %% traceback_of_optimizer_made
import traceback

train()
try:
    torch.optim.SGD(model.parameters(), lr=-1)
except ValueError as error:
    print([frame.name for frame in traceback.extract_tb(error.__traceback__)])

# %% traceback_of_loader_made
import traceback

train()
try:
    torch.utils.data.DataLoader([1], batch_size=0)
except ValueError as error:
    print([frame.name for frame in traceback.extract_tb(error.__traceback__)])

# %% traceback_of_loader_next
import traceback

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise KeyError(index)

train()
try:
    next(iter(torch.utils.data.DataLoader(Data())))
except KeyError as error:
    print([frame.name for frame in traceback.extract_tb(error.__traceback__)])

# %% traceback_in_a_thread problems=no_window
import traceback

def work():
    train()
    try:
        torch.ones(2, requires_grad=True).backward()
    except RuntimeError as error:
        print([frame.name for frame in traceback.extract_tb(error.__traceback__)], flush=True)

thread = threading.Thread(target=work)
thread.start()
thread.join()
try:
    torch.ones(2, requires_grad=True).backward()
except RuntimeError as error:
    print([frame.name for frame in traceback.extract_tb(error.__traceback__)])

# %% traceback_of_step
import traceback

class Failing(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError("no step")

train(6)
for _ in range(3):
    try:
        Failing(model.parameters(), lr=0.1).step()
    except RuntimeError as error:
        print([frame.name for frame in traceback.extract_tb(error.__traceback__)])
train(6)

# %% exception_in_a_hook steps=12
def fail(module, args):
    if fails:
        raise RuntimeError("in a hook")

fails = False
model.register_forward_pre_hook(fail)
for number in range(12):
    print(step())
    fails = True
    try:
        step()
    except RuntimeError as error:
        print(error)
    fails = False

# %% exception_in_finally exit=1 quick
try:
    train()
    raise ValueError("first")
finally:
    raise KeyError("second")

# %% exception_group exit=1
train()
raise ExceptionGroup("several", [ValueError(1), KeyError(2)])

# %% excepthook exit=1
sys.excepthook = lambda kind, value, trace: print("hook", kind.__name__, value, flush=True)
train()
raise ValueError("for the hook")

# %% keyboard_interrupt exit=-2 quick
train()
raise KeyboardInterrupt

# %% interrupted_by_signal exit=-2 quick
import signal

train()
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)

# %% interrupt_caught quick
import signal

train(5)
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
train(7)

# %% terminated exit=-15 quick steps=any
import signal

train()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)

# %% terminate_handled exit=4 quick
import signal

def end(number, frame):
    print("terminated", flush=True)
    sys.exit(4)

signal.signal(signal.SIGTERM, end)
train()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)

# %% user_signal_inside_a_step quick
import signal

calls = []
signal.signal(signal.SIGUSR1, lambda *_: calls.append(len(calls)))

class Signalling(nn.Module):
    def forward(self, x):
        os.kill(os.getpid(), signal.SIGUSR1)
        return x

model = nn.Sequential(model, Signalling())
train()
print(calls)

# %% alarm
import signal

signal.signal(signal.SIGALRM, lambda *_: print("alarm", flush=True))
train(5)
signal.setitimer(signal.ITIMER_REAL, 0.001)
while signal.getitimer(signal.ITIMER_REAL)[0]:
    time.sleep(0.001)
train(7)

# %% handlers_are_the_programs quick
import signal

train()
print([str(signal.getsignal(number)) for number in (1, 2, 3, 10, 12, 13, 15, 64)])

# %% killed exit=-9 steps=any quick
import signal

train()
os.kill(os.getpid(), signal.SIGKILL)

# %% stack_overflow_caught
def recurse():
    return recurse()

train(6)
try:
    recurse()
except RecursionError as error:
    print(type(error).__name__, sys.getrecursionlimit())
train(6)

# %% atexit_order quick steps=13
atexit.register(print, "last", flush=True)
atexit.register(lambda: print("trains at exit", step(), flush=True))
train()

# %% atexit_raises loud
def fail():
    raise ValueError("at exit")

atexit.register(fail)
train()

# %% atexit_unregistered
def never():
    print("never")

atexit.register(never)
train()
atexit.unregister(never)

# %% generator_closed
def losses():
    try:
        while True:
            yield step()
    finally:
        print("closed", flush=True)

source = losses()
for _ in range(12):
    print(next(source), flush=True)
source.close()

# %% context_left_by_exception exit=1
from contextlib import contextmanager

@contextmanager
def training():
    try:
        yield
    except ValueError:
        print("seen", flush=True)
        raise

with training():
    train()
    raise ValueError("through a context")

# %% finalizer_at_exit
import weakref

class Owner:
    pass

owner = Owner()
weakref.finalize(owner, print, "finalized", flush=True)
train()

# %% stdout_closed exit=any loud
train()
sys.stdout.close()
sys.stdout = open(os.devnull, "w")

# %% atexit_leaves exit=11 steps=15
@atexit.register
def leave():
    train(3)
    os._exit(11)

train()

# %% all_signals_blocked
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
train()
os.kill(os.getpid(), signal.SIGTERM)
print(sorted(signal.sigpending()))
signal.sigwait([signal.SIGTERM])

# %% alarms_of_processor_time steps=40
import signal

names = []
signal.signal(signal.SIGPROF, lambda _, frame: names.append(frame.f_code.co_name))
signal.setitimer(signal.ITIMER_PROF, 0.0005, 0.0005)
train(40)
signal.setitimer(signal.ITIMER_PROF, 0)
print(len(names) > 0)

# %% alarms_that_raise_amid_calls quick steps=30
import signal

class Late(Exception):
    pass

def handler(number, frame):
    raise Late

signal.signal(signal.SIGALRM, handler)
late = 0
for number in range(30):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002 + 0.0002 * number)
        while True:
            model[0](torch.ones(4, 8))
    except Late:
        late += 1
    print(step())
print(late)

# %% wakeup_descriptor
import signal
import socket

reading, writing = socket.socketpair()
reading.setblocking(False)
writing.setblocking(False)
print(signal.set_wakeup_fd(writing.fileno()))
signal.signal(signal.SIGUSR1, lambda *_: None)
train(6)
os.kill(os.getpid(), signal.SIGUSR1)
train(6)
print(reading.recv(100), signal.set_wakeup_fd(-1) == writing.fileno())
