# %% fork_and_exit exit=0 quick
for number in range(12):
    print(step(), flush=True)
    if number == 4:
        child = os.fork()
        if child == 0:
            print(step())
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

# %% fork_and_leave
train(5)
child = os.fork()
if child == 0:
    print(step(), flush=True)
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
train(7)

# %% fork_and_raise loud
train(5)
child = os.fork()
if child == 0:
    raise ValueError("of a child")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
train(7)

# %% fork_and_exec quick
train(5)
child = os.fork()
if child == 0:
    os.execv("/bin/echo", ["echo", "child"])
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
train(7)

# %% fork_and_kill
import signal

train(5)
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGKILL)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
train(7)

# %% fork_and_train_in_child quick
train(12)
child = os.fork()
if child == 0:
    train(12)
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

# %% double_fork
train(5)
child = os.fork()
if child == 0:
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
train(7)

# %% parent_leaves_child_goes_on steps=5
train(5)
reading, writing = os.pipe()
if os.fork() == 0:
    os.close(reading)
    os.write(writing, b"from the child")
    os._exit(0)
os.close(writing)
print(os.read(reading, 100))
os.wait()

# %% exec_itself steps=5 quick
train(5)
sys.stdout.flush()
os.execv("/bin/echo", ["echo", "replaced"])

# %% subprocess_output
import subprocess

train(5)
print(subprocess.run(["/bin/echo", "hello"], capture_output=True, text=True).stdout, flush=True)
train(7)

# %% subprocess_sees_environment
import subprocess

train(5)
env = subprocess.run(["/usr/bin/env"], capture_output=True, text=True).stdout.splitlines()
print(sorted(line for line in env if "STEPSCOPE" in line or "PYTHONPATH" in line or "KINETO" in line))
train(7)

# %% system_shell
train(5)
print(os.system("exit 3") >> 8, flush=True)
train(7)

# %% fork_process
import multiprocessing

def work(queue):
    queue.put(torch.arange(4).sum().item())

train(5)
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
process = context.Process(target=work, args=(queue,))
process.start()
process.join()
print(queue.get(), process.exitcode)
train(7)

# %% fork_pool
import multiprocessing

train(5)
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(abs, range(-4, 0)))
train(7)

# %% spawned_process cold=spawn
import multiprocessing

def work(queue):
    queue.put(sorted(name for name in os.environ if "STEPSCOPE" in name))

if __name__ == "__main__":
    train(5)
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    process.join()
    print(queue.get(), process.exitcode)
    train(7)

# %% shared_memory_tensor
import torch.multiprocessing as multiprocessing

def work(tensor):
    tensor.add_(1)

train(5)
shared = torch.zeros(4).share_memory_()
process = multiprocessing.get_context("fork").Process(target=work, args=(shared,))
process.start()
process.join()
print(shared)
train(7)

# %% process_executor
from concurrent.futures import ProcessPoolExecutor
import multiprocessing

train(5)
with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
    print(list(pool.map(abs, [-1, -2])))
train(7)

# %% at_fork_handlers quick
order = []
os.register_at_fork(
    before=lambda: order.append("before"),
    after_in_parent=lambda: order.append("parent"),
    after_in_child=lambda: print("child", order, flush=True),
)
train(5)
if os.fork() == 0:
    os._exit(0)
os.wait()
print(order)
train(7)

# %% forked_atexit
atexit.register(lambda: print("at exit", os.getpid() == first, flush=True))
first = os.getpid()
train(5)
if (child := os.fork()) == 0:
    sys.exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
train(7)

# %% fork_holds_a_lock
lock = threading.Lock()
train(5)
with lock:
    child = os.fork()
    if child == 0:
        print(lock.locked(), flush=True)
        os._exit(0)
os.waitpid(child, 0)
train(7)

# %% posix_spawn quick
train(5)
child = os.posix_spawn("/bin/echo", ["echo", "spawned"], os.environ)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
train(7)

# %% open_descriptors
train(12)
before = {os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if n in "012"}
print(len(before) > 0, all(os.fstat(n) for n in (0, 1, 2)))

# %% daemon_that_closes_everything
child = os.fork()
if child == 0:
    os.closerange(3, 512)
    os.setsid()
    files = [open(f"child{n}", "wb", buffering=0) for n in range(12)]
    print("child", step(), step(), [os.fstat(file.fileno()).st_size for file in files], flush=True)
    sys.exit(4)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
train()

# %% waits_for_any_child
import signal
got = []
signal.signal(signal.SIGCHLD, lambda *_: got.append(1))
train()
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("none", got)
