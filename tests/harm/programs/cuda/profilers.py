# %% scheduled steps=50 problems=no_stacks loud
from collections import Counter
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule

def ready(profiler):
    events = list(profiler.events())
    print(Counter(e.name for e in events if e.name.startswith("aten::")))
    print(Counter(e.name for e in events if e.device_type == DeviceType.CUDA and "Step" not in e.name))

build()
both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
with profile(activities=both, schedule=schedule(wait=5, warmup=2, active=8, repeat=3), on_trace_ready=ready) as own:
    for _ in range(50):
        print(step())
        own.step()

# %% whole_loop problems=no_window loud
from collections import Counter
from torch.autograd import DeviceType

build()
with torch.profiler.profile() as own:
    losses = [step() for _ in range(12)]
print(losses, Counter(e.name for e in own.events() if e.name.startswith("aten::")))
print(Counter(e.name for e in own.events() if e.device_type == DeviceType.CUDA))

# %% device_only problems=no_window loud
from collections import Counter
from torch.profiler import ProfilerActivity, profile

build()
train(3)
with profile(activities=[ProfilerActivity.CUDA]) as own:
    train(6)
    torch.cuda.synchronize()
print(sorted(Counter(e.name for e in own.events() if not e.name.startswith("cuda")).items()))
train(3)

# %% after_the_window steps=20 loud
from collections import Counter
from torch.autograd import DeviceType

build()
train(12)
with torch.profiler.profile() as own:
    train(4)
    torch.cuda.synchronize()
print(Counter(e.name for e in own.events() if e.device_type == DeviceType.CUDA))
train(4)

# %% now_and_then steps=20 problems=no_window loud
build()
for number in range(20):
    if number % 7 == 3:
        with torch.profiler.profile(record_shapes=True, profile_memory=True) as own:
            print(step())
        print(sum(e.name.startswith("aten::") for e in own.events()))
    else:
        print(step())

# %% nested problems=no_stacks exit=any steps=any loud
build()
for number in range(12):
    if number == 6:
        with torch.profiler.profile() as outer:
            print(step())
            try:
                with torch.profiler.profile():
                    pass
            except RuntimeError as error:
                print("nested", type(error).__name__)
    else:
        print(step())

# %% nvtx_emitted problems=no_window loud
build()
train(3)
with torch.autograd.profiler.emit_nvtx():
    train(6)
train(3)

# %% nvtx_ranges
build()
for number in range(12):
    torch.cuda.nvtx.range_push(f"step {number}")
    with torch.cuda.nvtx.range("inner"):
        print(step())
    torch.cuda.nvtx.mark("done")
    torch.cuda.nvtx.range_pop()

# %% cuda_profiler_api
build()
train(3)
torch.cuda.profiler.start()
train(6)
torch.cuda.profiler.stop()
with torch.cuda.profiler.profile():
    train(3)

# %% legacy_profiler problems=no_stacks loud
from torch.autograd import profiler

build()
for number in range(12):
    with profiler.profile(enabled=number >= 7, use_device="cuda") as own:
        print(step())
    print(own and sum(e.name.startswith("aten::") for e in own.function_events))

# %% in_a_thread problems=no_window loud
def evaluate():
    with torch.profiler.profile() as own, torch.no_grad():
        model(torch.ones(4, 8, device="cuda"))
        torch.cuda.synchronize()
    print(sum(e.name.startswith("aten::") for e in own.events()), flush=True)

build()
for number in range(12):
    print(step(), flush=True)
    if number == 3:
        thread = threading.Thread(target=evaluate)
        thread.start()
        thread.join()

# %% exported steps=8 problems=no_window,profiled_itself loud
import json

build()
with torch.profiler.profile(with_stack=True) as own:
    train(4)
own.export_chrome_trace("own.json")
events = json.load(open("own.json"))["traceEvents"]
print(sum(e.get("cat") == "kernel" for e in events) > 20, "stepscope" in open("own.json").read())
train(8)

# %% memory_history
build()
torch.cuda.memory._record_memory_history(max_entries=1000)
train()
torch.cuda.memory._dump_snapshot("own.pickle")
torch.cuda.memory._record_memory_history(enabled=None)
snapshot = torch.cuda.memory._snapshot()
print(os.path.getsize("own.pickle") > 1000, len(snapshot["segments"]) > 0)

# %% memory_snapshots
build()
for _ in range(12):
    print(step(), len(torch.cuda.memory_snapshot()) > 0)
print("allocated" in torch.cuda.memory_summary())

# %% memory_statistics
build()
train(6)
torch.cuda.reset_peak_memory_stats()
train(6)
peak = torch.cuda.max_memory_allocated()
print(0 < torch.cuda.memory_allocated() <= peak < torch.cuda.max_memory_reserved() + 1)

# %% profiled_twice_then_fork problems=no_window loud
build()
for _ in range(2):
    with torch.profiler.profile() as own:
        train(3)
train(6)
if (child := os.fork()) == 0:
    os._exit(4)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
