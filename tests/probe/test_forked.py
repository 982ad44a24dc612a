"""What happens in a process forked from an observed one, such as a DataLoader's worker."""

import gc
import os
import subprocess
import sys

from fixing import fixed


class Cycle:
    """Garbage that only a collection finds; its end is written into a file."""

    def __init__(self, path):
        self.path = path
        self.me = self

    def __del__(self):
        self.path.write_text(str(os.getpid()))


def test_garbage_of_the_parent_is_not_collected_in_a_forked_child(tmp_path):
    gc.collect()
    gc.disable()
    try:
        with fixed(tmp_path / "run"):
            Cycle(tmp_path / "ended")
            child = os.fork()
            if child == 0:
                gc.enable()
                gc.collect()
                os._exit(0)
            os.waitpid(child, 0)
            assert not (tmp_path / "ended").exists()
            gc.collect()
            assert (tmp_path / "ended").read_text() == str(os.getpid())
    finally:
        gc.enable()


GARBAGE = """
import gc, os, sys

from stepscope.probe.boot import watch_forks

class Cycle:
    def __init__(self):
        self.me = self

    def __del__(self):
        print(f"ended in {'the parent' if os.getpid() == parent else 'a child'}", flush=True)

parent = os.getpid()
os.register_at_fork(after_in_child=lambda: [[] for _ in range(100_000)])  # a library's handler
watch_forks(lambda: print("forked", flush=True))
Cycle()
child = os.fork()
if child == 0:
    print("collecting" if gc.isenabled() else "held", flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("collecting" if gc.isenabled() else "held", flush=True)
gc.collect()
"""


def said(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_collection_does_not_come_in_before_the_childs_garbage_is_set_aside():
    assert said(GARBAGE) == ["forked", "collecting", "collecting", "ended in the parent"]


def test_a_program_without_collections_has_none_after_a_fork_either():
    program = GARBAGE.replace("Cycle()\n", "gc.disable()\n", 1)
    assert said(program) == ["forked", "held", "held"]
