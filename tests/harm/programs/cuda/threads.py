# %% trained_in_a_thread problems=no_window
build()
thread = threading.Thread(target=train)
thread.start()
thread.join()

# %% on_a_stream_of_its_own problems=no_window
def work():
    with torch.cuda.stream(torch.cuda.Stream()):
        train()
        torch.cuda.current_stream().synchronize()

build()
torch.cuda.synchronize()
thread = threading.Thread(target=work)
thread.start()
thread.join()

# %% threads_one_after_another steps=40 problems=no_window
build()
for _ in range(4):
    thread = threading.Thread(target=train, args=(10,))
    thread.start()
    thread.join()

# %% two_in_turn steps=20 problems=no_window,other_threads:20
turns = [threading.Event(), threading.Event()]
nets = [nn.Linear(8, 1).cuda(), nn.Linear(8, 1).cuda()]
ended = threading.Barrier(2)

def work(which):
    own = torch.optim.SGD(nets[which].parameters(), lr=0.1)
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            turns[which].wait()
            turns[which].clear()
            own.zero_grad()
            loss = nets[which](torch.randn(4, 8, device="cuda")).square().mean()
            loss.backward()
            own.step()
            print(which, loss.item(), flush=True)
            turns[1 - which].set()
    ended.wait()

torch.cuda.synchronize()
threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
for thread in threads:
    thread.start()
turns[0].set()
for thread in threads:
    thread.join()

# %% evaluation_in_a_thread
def evaluate():
    with torch.no_grad():
        print(model(torch.ones(4, 8, device="cuda")).sum().item(), flush=True)

build()
for _ in range(4):
    train(3)
    model.eval()
    thread = threading.Thread(target=evaluate)
    thread.start()
    thread.join()
    model.train()

# %% batches_copied_by_a_thread
import queue

def produce():
    generator = torch.Generator().manual_seed(3)
    for _ in range(12):
        x = torch.randn(4, 8, generator=generator).pin_memory()
        with torch.cuda.stream(copying):
            moved = x.cuda(non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        batches.put((x, moved, event))
    batches.put(None)

build()
copying, batches = torch.cuda.Stream(), queue.Queue(2)
thread = threading.Thread(target=produce)
thread.start()
while (batch := batches.get()) is not None:
    kept, x, event = batch
    event.wait()
    x.record_stream(torch.cuda.current_stream())
    print(update(model(x).square().mean()))
thread.join()

# %% backward_in_another_thread
build()
for _ in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    optimizer.step()
    print(loss.item())

# %% thread_left_behind
def work():
    while True:
        torch.ones(8, device="cuda").sum().item()

build()
threading.Thread(target=work, daemon=True).start()
train()
sys.stdout.flush()
