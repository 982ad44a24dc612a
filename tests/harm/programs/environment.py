# %% reads_stdin quick stdin=first\nsecond
print(input(), sys.stdin.read())
train()

# %% arguments quick args=--rate,0.5,file
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
parser.add_argument("name")
print(parser.parse_args(), sys.argv[1:])
train()

# %% wrong_arguments exit=2 args=--unknown steps=0
import argparse

argparse.ArgumentParser(prog="program").parse_args()

# %% binary_output quick
train()
sys.stdout.flush()
sys.stdout.buffer.write(bytes(range(256)))

# %% without_newline
train()
sys.stdout.write("no newline at the end")

# %% large_output
train()
print("x" * 200_000)

# %% to_stderr quick
for _ in range(12):
    print(step(), file=sys.stderr)

# %% relative_files
with open("notes.txt", "w") as file:
    file.write("kept")
train()
print(open("notes.txt").read(), sorted(name for name in os.listdir() if name.endswith(".txt")))

# %% another_folder
os.makedirs("inner", exist_ok=True)
os.chdir("inner")
train()
print(os.path.basename(os.getcwd()))

# %% folder_removed
os.makedirs("gone", exist_ok=True)
os.chdir("gone")
os.rmdir("../gone")
train()

# %% environment quick
print(sorted(name for name in os.environ if name.startswith(("STEPSCOPE", "PYTHON", "KINETO", "TORCH"))))
train()
print(sorted(name for name in os.environ if name.startswith(("STEPSCOPE", "PYTHON", "KINETO", "TORCH"))))

# %% environment_changed steps=24
os.environ["MINE"] = "1"
train()
os.environ.clear()
train()
print(dict(os.environ))

# %% import_path
print(sys.path[0] == os.path.dirname(os.path.abspath(__file__)), any("stepscope/launch" in p for p in sys.path))
train()

# %% imports_its_own_module
with open("helper_module.py", "w") as file:
    file.write("value = 7\n")
import helper_module

train()
print(helper_module.value, helper_module.__spec__.name, type(helper_module.__loader__).__name__)

# %% import_fails
train()
try:
    import no_such_module
except ModuleNotFoundError as error:
    print(error, error.name)

# %% import_hook
class Finder:
    def find_spec(self, name, path, target=None):
        if name.startswith("imaginary"):
            print("asked for", name)

sys.meta_path.insert(0, Finder())
train()
try:
    import imaginary
except ModuleNotFoundError:
    print("not found")

# %% limits
import resource

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
train()
print(resource.getrlimit(resource.RLIMIT_NOFILE))

# %% core_limit_and_niceness
import resource

print(resource.getrlimit(resource.RLIMIT_CORE), os.nice(0))
train()

# %% umask_and_ids quick
old = os.umask(0o077)
train()
print(oct(os.umask(old)), os.getpgid(0) == os.getpgrp())

# %% temporary_files
import tempfile

with tempfile.TemporaryDirectory() as folder:
    train()
    print(os.listdir(folder))

# %% locale_and_time
import locale

train()
print(locale.getlocale(), time.tzname)

# %% no_torch_functions_used steps=0
print("nothing is trained")

# %% set_recursion_limit
sys.setrecursionlimit(3000)
train()
print(sys.getrecursionlimit())

# %% buffered_files
file = open("out.txt", "w")
file.write("not flushed")
train()
file.close()
print(open("out.txt").read())

# %% standard_output_replaced quick
import io

real, sys.stdout = sys.stdout, io.StringIO()
train()
text, sys.stdout = sys.stdout.getvalue(), real
print(text)

# %% print_to_closed_pipe
reading, writing = os.pipe()
os.close(reading)
train()
try:
    os.write(writing, b"x")
except BrokenPipeError:
    print("broken pipe")

# %% module_program quick module
print(__name__, __package__, __spec__.name, sys.argv[1:])
train()

# %% warnings_are_errors_from_the_start cold=PYTHONWARNINGS=error
train()

# %% hash_seed cold=PYTHONHASHSEED=3
train()
print(hash("a"))

# %% development_mode cold=PYTHONDEVMODE=1 loud
train()

# %% unbuffered cold=PYTHONUNBUFFERED=1
train()
print(sys.stdout.write_through)

# %% no_site_of_the_user cold=PYTHONNOUSERSITE=1
train()
print(sys.flags.no_user_site)

# %% whole_interpreter_with_thread cold problems=no_window
thread = threading.Thread(target=train)
thread.start()
thread.join()

# %% whole_interpreter_with_profile cold steps=8 problems=profiled_itself,no_window
import cProfile
import pstats

train(4)
profiler = cProfile.Profile()
profiler.enable()
for _ in range(4):
    step()
profiler.disable()
print(sorted(name for _, _, name in pstats.Stats(profiler).stats))
train(4)

# %% all_descriptors_closed quick
os.closerange(3, 512)
own = [open(f"own{n}", "wb", buffering=0) for n in range(12)]
train()
for file in own:
    file.write(b"own")
    file.close()
print([open(file.name, "rb").read() for file in own])

# %% standard_streams_closed
os.close(0)
os.close(2)
train(5)
print([os.open(os.devnull, os.O_RDWR) for _ in range(2)])
train(7)

# %% privileges_dropped steps=any problems=recording_stopped unfixed
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
train(20)

# %% writing_forbidden_by_an_audit_hook steps=23 problems=trace_lost
def hook(event, args):
    if forbidden and event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR):
        raise PermissionError(event)

forbidden = []
sys.addaudithook(hook)
train(3)
forbidden.append(True)
train(20)
forbidden.clear()

# %% own_process_group_killed exit=-15 steps=any
import signal
os.setsid()
train(6)
os.killpg(0, signal.SIGTERM)
time.sleep(60)

# %% clocks_stand_still quick
for name in ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"):
    setattr(time, name, lambda: 0)
train()

# %% clocks_fail quick
def fail(*_):
    raise RuntimeError("no time")

for name in ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns", "sleep"):
    setattr(time, name, fail)
train()

# %% clocks_go_backwards
now = [10**15]

def back():
    now[0] -= 10**9
    return now[0]

for name in ("monotonic", "perf_counter", "time"):
    setattr(time, name, lambda: back() / 1e9)
    setattr(time, f"{name}_ns", back)
train()

# %% loader_module_imported_again
train(4)
for name in [name for name in sys.modules if name.startswith("torch.utils.data")]:
    del sys.modules[name]
from torch.utils.data import DataLoader

print(list(DataLoader(range(3))))
train(8)

# %% package_of_the_same_name quick
with open("stepscope.py", "w") as file:
    file.write("mine = 1\n")
import stepscope

print(getattr(stepscope, "mine", None))
train()
