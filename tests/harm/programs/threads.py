# %% one_thread quick problems=no_window
thread = threading.Thread(target=train)
thread.start()
thread.join()

# %% threads_one_after_another steps=60 quick problems=no_window
for _ in range(6):
    thread = threading.Thread(target=train, args=(10,))
    thread.start()
    thread.join()

# %% two_threads_at_once steps=20 quick problems=no_window,other_threads:20
turns = [threading.Event(), threading.Event()]
nets = [nn.Linear(8, 1), nn.Linear(8, 1)]
ended = threading.Barrier(2)

def train_in_turn(which):
    net = nets[which]
    own = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(20):
        turns[which].wait()
        turns[which].clear()
        own.zero_grad()
        loss = net(torch.randn(4, 8)).square().mean()
        loss.backward()
        own.step()
        print(which, loss.item(), flush=True)
        turns[1 - which].set()
    ended.wait()

threads = [threading.Thread(target=train_in_turn, args=(which,)) for which in range(2)]
for thread in threads:
    thread.start()
turns[0].set()
for thread in threads:
    thread.join()

# %% three_threads_unordered steps=30 problems=no_window,other_threads:60
def train_alone(results, which):
    generator = torch.Generator().manual_seed(which)
    weight = torch.zeros(8, 1, requires_grad=True)
    own = torch.optim.SGD([weight], lr=0.1)
    started.wait()
    for number in range(30):
        own.zero_grad()
        loss = (torch.randn(4, 8, generator=generator) @ weight - 1).square().mean()
        loss.backward()
        own.step()
        results[which].append(loss.item())
    ended.wait()

started, ended = threading.Barrier(3), threading.Barrier(3)
results = [[], [], []]
threads = [threading.Thread(target=train_alone, args=(results, which)) for which in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(results)

# %% main_then_thread quick problems=other_threads:12
train()
thread = threading.Thread(target=train)
thread.start()
thread.join()

# %% evaluation_in_a_thread
def evaluate():
    with torch.no_grad():
        print(model(torch.ones(4, 8)).sum().item(), flush=True)

for _ in range(4):
    train(3)
    model.eval()
    thread = threading.Thread(target=evaluate)
    thread.start()
    thread.join()
    model.train()

# %% executor problems=no_window quick
from concurrent.futures import ThreadPoolExecutor

with ThreadPoolExecutor(1) as pool:
    print([pool.submit(step).result() for _ in range(12)])

# %% executor_inference steps=12
from concurrent.futures import ThreadPoolExecutor

model.eval()
del optimizer
with ThreadPoolExecutor(1) as pool, torch.inference_mode():
    def infer(x):
        with torch.inference_mode():
            return model(x).sum().item()
    print(list(pool.map(infer, [torch.full((4, 8), float(n)) for n in range(12)])))

# %% background_thread_computes
stop = threading.Event()

def compute():
    while not stop.is_set():
        torch.ones(64).sum()

thread = threading.Thread(target=compute)
thread.start()
train()
stop.set()
thread.join()

# %% prefetching_thread quick
import queue

def produce():
    generator = torch.Generator().manual_seed(3)
    for _ in range(12):
        batches.put(torch.randn(4, 8, generator=generator))
    batches.put(None)

batches = queue.Queue(2)
threading.Thread(target=produce, daemon=True).start()
while (batch := batches.get()) is not None:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())

# %% daemon_thread_at_exit quick
def wait_for_ever():
    threading.Event().wait()

threading.Thread(target=wait_for_ever, daemon=True).start()
train()

# %% thread_raises loud
def fail():
    raise ValueError("of a thread")

thread = threading.Thread(target=fail)
train(6)
thread.start()
thread.join()
train(6)

# %% backward_in_another_thread quick
def backward(loss):
    loss.backward()

for _ in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    thread = threading.Thread(target=backward, args=(loss,))
    thread.start()
    thread.join()
    optimizer.step()
    print(loss.item())

# %% thread_names_and_count
train(6)
print(threading.active_count(), [thread.name for thread in threading.enumerate()])
train(6)

# %% thread_excepthook problems=other_threads:1
threading.excepthook = lambda args: print("hook", args.exc_type.__name__, flush=True)

def fail():
    step()
    raise KeyError("of a thread")

train(12)
thread = threading.Thread(target=fail)
thread.start()
thread.join()

# %% timer_thread
timer = threading.Timer(0.001, lambda: None)
timer.start()
train()
timer.join()

# %% local_state problems=no_window
local = threading.local()

def train_local():
    local.count = 0
    for _ in range(12):
        local.count += 1
        print(local.count, step(), flush=True)

thread = threading.Thread(target=train_local)
thread.start()
thread.join()

# %% thread_profiles_while_joined quick problems=no_window loud
def evaluate():
    with torch.profiler.profile() as own, torch.no_grad():
        model(torch.ones(4, 8))
    print(len(own.events()), flush=True)

for number in range(12):
    print(step(), flush=True)
    if number == 3:
        thread = threading.Thread(target=evaluate)
        thread.start()
        thread.join()
    if number == 7:
        with torch.profiler.profile() as own:
            torch.ones(4).sum()
        print(len(own.events()), flush=True)

# %% thread_profiles_while_signals_are_blocked problems=no_window loud
import signal

def evaluate():
    with torch.profiler.profile() as own, torch.no_grad():
        torch.ones(4, 8).sum()
    print(len(own.events()), flush=True)

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMAX])
for number in range(12):
    print(step(), flush=True)
    if number == 3:
        thread = threading.Thread(target=evaluate)
        thread.start()
        thread.join()
        with torch.profiler.profile() as own:
            torch.ones(4).sum()
        print(len(own.events()), flush=True)

# %% thread_profiles_beside_a_signal_handler problems=no_stacks,profiled_itself steps=any loud
import signal

def evaluate():
    with torch.profiler.profile() as own, torch.no_grad():
        torch.ones(4, 8).sum()
    print(len(own.events()), flush=True)

signal.signal(signal.SIGRTMAX, lambda *_: None)
for number in range(12):
    print(step(), flush=True)
    if number == 7:
        thread = threading.Thread(target=evaluate)
        thread.start()
        thread.join()
        for _ in range(2):
            with torch.profiler.profile(with_stack=True) as own:
                torch.ones(4).sum()
            print(len([event for event in own.events() if event.name == "aten::sum"]), flush=True)

# %% raw_thread problems=no_window
import _thread

def train_raw():
    train()
    done.release()

done = _thread.allocate_lock()
done.acquire()
_thread.start_new_thread(train_raw, ())
done.acquire()

# %% steps_end_a_thread steps=6 options=--steps,6,--no-window expect=same_start quick
thread = threading.Thread(target=train)
thread.start()
thread.join()
print("never here under --steps")

# %% steps_run_finally steps=9 options=--steps,6,--no-window expect=same_start quick
try:
    train()
finally:
    for _ in range(3):
        step()
    print("cleaned up", flush=True)

# %% steps_swallowed options=--steps,6,--no-window expect=ends steps=9
while True:
    try:
        print(step(), flush=True)
    except:
        pass

# %% leaves_from_a_thread exit=7 steps=any
train(5)
threading.Thread(target=os._exit, args=(7,)).start()
time.sleep(60)
