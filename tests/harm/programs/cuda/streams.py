# %% plain fix=fused_optimizer,cuda_graph,amp=bf16,tf32=on,expandable_segments
build()
train()

# %% side_stream
build()
side = torch.cuda.Stream()
for _ in range(12):
    x = torch.randn(4, 8, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        noise = torch.sin(x) * 0.1
    loss = model(x)
    torch.cuda.current_stream().wait_stream(side)
    noise.record_stream(torch.cuda.current_stream())
    print(update((loss + noise.mean()).square().mean()))

# %% four_streams
build()
streams = [torch.cuda.Stream() for _ in range(4)]
for _ in range(12):
    x = torch.randn(64, 8, device="cuda")
    parts = []
    for stream, part in zip(streams, x.chunk(4)):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            parts.append(torch.tanh(part @ part.T) @ part)
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    for part in parts:
        part.record_stream(torch.cuda.current_stream())
    print(update(model(torch.cat(parts)).square().mean()))

# %% double_buffered_copies
build()
copying = torch.cuda.Stream()
batches = [torch.randn(4, 8).pin_memory() for _ in range(12)]

def fetch(number):
    with torch.cuda.stream(copying):
        return batches[number].to("cuda", non_blocking=True)

following = fetch(0)
for number in range(12):
    torch.cuda.current_stream().wait_stream(copying)
    x = following
    x.record_stream(torch.cuda.current_stream())
    if number < 11:
        following = fetch(number + 1)
    print(update(model(x).square().mean()))

# %% events_that_time
build()
events = []
for _ in range(12):
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    print(step())
    last.record()
    events.append((first, last))
torch.cuda.synchronize()
print(all(first.elapsed_time(last) > 0 for first, last in events))

# %% events_that_are_polled
build()
for _ in range(12):
    loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    update(loss)
    event = torch.cuda.Event()
    event.record()
    while not event.query():
        time.sleep(0)
    print(loss.item())

# %% events_between_streams
build()
side, ready, done = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
for _ in range(12):
    x = torch.randn(32, 8, device="cuda")
    ready.record()
    with torch.cuda.stream(side):
        side.wait_event(ready)
        y = x @ x.T @ x
        done.record()
    done.wait()
    y.record_stream(torch.cuda.current_stream())
    print(update(model(y).square().mean()))

# %% pinned_and_non_blocking
build()
batches = [torch.randn(4, 8).pin_memory() for _ in range(12)]
for batch in batches:
    print(update(model(batch.cuda(non_blocking=True)).square().mean()))
print([batch.is_pinned() for batch in batches])

# %% pinned_buffer_refilled
build()
buffer, event = torch.empty(4, 8, pin_memory=True), torch.cuda.Event()
for number in range(12):
    buffer.copy_(torch.randn(4, 8))
    x = buffer.to("cuda", non_blocking=True)
    event.record()
    event.synchronize()
    buffer.fill_(float("nan"))
    print(update(model(x).square().mean()))
    torch.cuda.synchronize()

# %% losses_copied_late
build()
losses = torch.empty(12, pin_memory=True)
for number in range(12):
    loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses[number].copy_(loss.detach(), non_blocking=True)
torch.cuda.current_stream().synchronize()
print(losses.tolist())

# %% synchronized_each_step fix=nosync,fused_optimizer
build()
for _ in range(12):
    print(step())
    torch.cuda.synchronize()

# %% summed_losses fix=lazyitem
build()
total = 0.0
for _ in range(12):
    loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()
print(total)

# %% another_current_stream
torch.cuda.set_stream(torch.cuda.Stream())
build()
train()
print(torch.cuda.current_stream() != torch.cuda.default_stream())

# %% stream_of_priority
build()
urgent = torch.cuda.Stream(priority=-1)
torch.cuda.synchronize()
with torch.cuda.stream(urgent):
    train()
urgent.synchronize()

# %% external_stream
build()
own = torch.cuda.Stream()
external = torch.cuda.ExternalStream(own.cuda_stream)
torch.cuda.synchronize()
with torch.cuda.stream(external):
    train()
own.synchronize()

# %% forward_on_a_side_stream
build()
side = torch.cuda.Stream()
for _ in range(12):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    torch.cuda.current_stream().wait_stream(side)
    print(update(loss))

# %% synchronizing_is_an_error
build()
losses = []
for number in range(12):
    torch.cuda.set_sync_debug_mode("error" if number > 3 else "default")
    loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
torch.cuda.set_sync_debug_mode("default")
print(torch.stack(losses).tolist())

# %% synchronizing_is_warned_of unfixed problems=waits_unseen
import warnings

build()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.cuda.set_sync_debug_mode("warn")
    train()
    torch.cuda.set_sync_debug_mode("default")
print(len(caught), {os.path.basename(w.filename) for w in caught})

# %% patched_synchronize
build()
before, calls = torch.cuda.synchronize, []
torch.cuda.synchronize = lambda *args: calls.append(1) or before(*args)
for number in range(12):
    print(step())
    torch.cuda.synchronize()
    if number == 8:
        torch.cuda.synchronize = before
print(len(calls), torch.cuda.synchronize is before, torch.cuda.synchronize.__name__)

# %% patched_to_and_cuda
build()
calls = []
to, cuda = torch.Tensor.to, torch.Tensor.cuda
torch.Tensor.to = lambda self, *args, **kwargs: calls.append("to") or to(self, *args, **kwargs)
torch.Tensor.cuda = lambda self, *args, **kwargs: calls.append("cuda") or cuda(self, *args, **kwargs)
for number in range(12):
    x = torch.randn(4, 8)
    print(update(model(x.to("cuda") if number % 2 else x.cuda()).square().mean()))
torch.Tensor.to, torch.Tensor.cuda = to, cuda
print(calls, torch.Tensor.to.__name__, torch.Tensor.cuda.__name__)

# %% patched_events_and_streams
build()
calls = []

class Event(torch.cuda.Event):
    def record(self, stream=None):
        calls.append("record")
        return super().record(stream)

class Stream(torch.cuda.Stream):
    def synchronize(self):
        calls.append("synchronize")
        return super().synchronize()

torch.cuda.Event, torch.cuda.Stream, kept = Event, Stream, (torch.cuda.Event, torch.cuda.Stream)
train(8)
torch.cuda.Event().record()
torch.cuda.Stream().synchronize()
torch.cuda.Event, torch.cuda.Stream = kept
train(4)
print(calls)
