"""What happens in a process forked from an observed one, such as a DataLoader's worker."""

import gc
import os

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
