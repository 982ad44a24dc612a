"""Which of the user's lines did something, how often, for how long."""

import functools
import json
import signal
from pathlib import Path

import pytest

from stepscope.probe import sites as sites_module
from stepscope.probe.sites import Sites, is_thrown_by_program, is_user_code
from stepscope.record.facts import SiteFact
from stepscope.store.json_lines import FactLog, read_facts
from stepscope.store.table import read_table


class Recorded:
    def __init__(self, folder):
        self.folder = folder
        self.sites = Sites(folder, FactLog(folder / "facts.jsonl"))

    @property
    def facts(self):
        return read_facts(self.folder / "facts.jsonl").all(SiteFact)

    def here(self, what="forward"):
        """Stands for a patch: the frame that `here` passes over."""
        return self.sites.locate(what)


@pytest.fixture
def recorded(tmp_path):
    return Recorded(tmp_path)


def code_of(filename, source="x = 1"):
    return compile(source, filename, "exec")


def test_a_site_is_the_line_that_made_it_happen(recorded):
    recorded.here()
    [fact] = recorded.facts
    assert fact.file == __file__
    assert fact.function == "test_a_site_is_the_line_that_made_it_happen"
    assert fact.kind == "forward"
    assert fact.through is None
    assert "recorded.here()" in Path(__file__).read_text().splitlines()[fact.line - 1]


def test_the_same_line_is_one_site_however_often_it_runs(recorded):
    assert len({recorded.here() for _ in range(5)}) == 1
    assert len(recorded.facts) == 1


def test_two_calls_on_one_line_are_one_site(recorded):
    first, second = recorded.here(), recorded.here()
    assert first == second
    assert len(recorded.facts) == 1


def test_other_lines_and_other_things_are_other_sites(recorded):
    first = recorded.here("forward")
    second = recorded.here("forward")
    third = [recorded.here(what) for what in ("backward", "optimizer")]
    assert len({first, second, *third}) == 4
    assert [fact.id for fact in recorded.facts] == [0, 1, 2, 3]


def test_frames_of_libraries_are_passed_over(recorded, tmp_path):
    namespace = {}
    library = str(tmp_path / "site-packages" / "trainer" / "fit.py")
    exec(code_of(library, "def fit(step):\n    return step()\n"), namespace)
    namespace["fit"](lambda: recorded.here())
    [fact] = recorded.facts
    assert fact.file == __file__


@pytest.mark.parametrize(
    ("module", "through"), [("trainer.fit", "trainer"), ("torch.utils.data", None)]
)
def test_the_library_that_a_line_goes_through_is_told_unless_it_is_torch(
    recorded, tmp_path, module, through
):
    namespace = {"__name__": module}
    inner = str(tmp_path / "site-packages" / "other" / "loop.py")
    exec(code_of(inner, "def loop(here):\n    return here('loader', 1)\n"), {}, namespace)
    library = str(tmp_path / "site-packages" / "trainer" / "fit.py")
    exec(code_of(library, "def fit(here):\n    return loop(here)\n"), namespace)
    namespace["fit"](recorded.sites.locate)
    [fact] = recorded.facts
    assert fact.file == __file__
    assert fact.through == through


def test_equal_code_in_two_files_is_two_sites(recorded):
    source = "def step(here):\n    return here()\n"
    numbers = set()
    for name in ("/home/me/a.py", "/home/me/b.py"):
        namespace = {}
        exec(code_of(name, source), namespace)
        numbers.add(namespace["step"](recorded.here))
    assert {fact.file for fact in recorded.facts} == {"/home/me/a.py", "/home/me/b.py"}
    assert len(numbers) == 2


def test_counts_time_and_bytes_add_up_in_the_table(recorded, tmp_path):
    first = recorded.here("forward")
    second = recorded.here("h2d")
    recorded.sites.add(first, 100)
    recorded.sites.add(first, 50)
    recorded.sites.add(second, 7, nbytes=4096)
    recorded.sites.add(second, 7, nbytes=4096)
    recorded.sites.close()
    table = read_table(tmp_path / "sites.npy")
    assert table.tolist() == [(2, 150, 0, 0, 0, 0), (2, 14, 8192, 0, 0, 0)]


def test_what_sampled_steps_show_is_counted_apart(recorded, tmp_path):
    site = recorded.here("sync")
    recorded.sites.add(site, 100)
    recorded.sites.sampling = True
    recorded.sites.add(site, 50, nbytes=8)
    recorded.sites.add(recorded.here("epoch_start"), 7)  # seen in every step
    recorded.sites.close()
    assert read_table(tmp_path / "sites.npy").tolist() == [
        (1, 100, 0, 1, 50, 8), (1, 7, 0, 0, 0, 0),
    ]  # fmt: skip


def test_counters_are_in_the_file_before_it_is_closed(recorded, tmp_path):
    recorded.sites.add(recorded.here(), 5)
    assert read_table(tmp_path / "sites.npy")[0].tolist() == (1, 5, 0, 0, 0, 0)


def test_more_sites_than_a_chunk_holds(recorded, tmp_path):
    places = [recorded.here(f"thing {number}") for number in range(1500)]
    for place in places:
        recorded.sites.add(place, place)
    recorded.sites.close()
    table = read_table(tmp_path / "sites.npy")
    assert table["total_ns"].tolist() == list(range(1500))
    assert (table["count"] == 1).all()


@pytest.mark.parametrize(
    "name",
    [
        "/home/me/train.py",
        "train.py",
        "<ipython-input-3-abc>",
        "/home/me/stepscope_experiments/train.py",
    ],
)
def test_the_users_own_code(name):
    assert is_user_code(code_of(name))


@pytest.mark.parametrize(
    "name",
    [
        "/opt/env/lib/python3.12/site-packages/torch/nn/modules/module.py",
        "/usr/lib/python3/dist-packages/numpy/core.py",
        "<frozen runpy>",
        "<string>",
        pytest.__file__,
        json.__file__,
        sites_module.__file__,
    ],
)
def test_code_of_libraries_and_of_the_observer(name):
    assert not is_user_code(code_of(name))


def test_the_bundled_programs_count_as_the_users():
    bundled = sites_module.__file__.replace("/probe/sites.py", "/workloads/slow.py")
    assert is_user_code(code_of(bundled))


class OutOfTimeError(Exception):
    pass


class Handler:
    def __call__(self, *_):
        raise TimeoutError

    def method(self, *_):
        raise TimeoutError


def out_of_time(*_):
    raise TimeoutError


def broken(problem):
    raise problem


def caught(call):
    try:
        call()
    except Exception as problem:
        return problem
    return None


@pytest.mark.parametrize(
    "handler",
    [out_of_time, Handler(), Handler().method, functools.partial(out_of_time, 1)],
    ids=["function", "object", "method", "partial"],
)
def test_what_a_signal_handler_raises_is_thrown_by_the_program(handler):
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        problem = caught(functools.partial(signal.raise_signal, signal.SIGUSR2))
        assert is_thrown_by_program(problem)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not is_thrown_by_program(problem)


def test_what_another_thread_raises_here_is_thrown_by_the_program():
    """As `PyThreadState_SetAsyncExc` does it: nothing of the program's has run."""
    assert is_thrown_by_program(OutOfTimeError())
    assert not is_thrown_by_program(KeyError())


def test_what_the_programs_own_methods_raise_at_our_calls_is_not():
    assert not is_thrown_by_program(caught(functools.partial(broken, OutOfTimeError())))
