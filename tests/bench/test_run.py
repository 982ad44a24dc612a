"""A grid from first to last: rounds, what is skipped, and going on after a kill."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from measured import failure, record

from stepscope.bench.grid import BenchRequest, Point
from stepscope.bench.run import open_bench_folder, remaining_seconds, run_grid
from stepscope.record.errors import UsageError

BATCHES = (4, 8, 16)
REQUESTED = BenchRequest(
    models=("mlp",), modes=("infer",), devices=("cpu",), batches=BATCHES, rounds=3
)


class Lab:
    """Measures by hand: `outcomes` maps a batch to how its record is made."""

    def __init__(self, tmp_path):
        self.folder = tmp_path / "out"
        self.outcomes = {}
        self.batches = []
        self.heard = []

    def measure(self, point, folder, timeout_s):
        self.batches.append(point.batch)
        made = self.outcomes.get(point.batch, record)(point)
        if isinstance(made, BaseException):
            raise made
        return {name: value for name, value in made.items() if name != "round"}

    def run(self, request=REQUESTED):
        """The records after a run."""
        with open_bench_folder(self.folder, request, {}, False, self.folder.parent) as results:
            run_grid(request, results, self.heard.append, self.measure)
            return results.records


@pytest.fixture
def pool(tmp_path):
    return Lab(tmp_path)


def test_rounds_are_interleaved_and_every_other_one_goes_backwards(lab):
    records = lab.run()
    assert lab.batches == [4, 8, 16, 16, 8, 4, 4, 8, 16]
    assert [found["round"] for found in records] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_what_did_not_work_is_a_result_and_not_repeated(lab):
    lab.outcomes[8] = lambda point: failure(point, status="out_of_memory")
    records = lab.run()
    assert lab.batches.count(8) == 1
    assert len(records) == 7
    assert [found["status"] for found in records].count("out_of_memory") == 1


def test_an_interrupted_grid_goes_on_with_what_is_missing(lab):
    lab.outcomes[16] = lambda point: KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        lab.run()
    assert lab.batches == [4, 8, 16]
    lab.outcomes.clear()
    records = lab.run()
    assert lab.batches[3:] == [16, 16, 8, 4, 4, 8, 16]
    keys = [(found["key"], found["round"]) for found in records]
    assert len(set(keys)) == len(keys) == 9


def test_a_finished_grid_measures_nothing_again(lab):
    first = lab.run()
    lab.batches.clear()
    assert lab.run() == first
    assert lab.batches == []


def test_a_request_refused_by_the_first_program_is_an_error_and_no_result(lab):
    lab.outcomes[4] = lambda point: failure(point, exit_code=2, why="no CIFAR-10 in data")
    with pytest.raises(UsageError, match=r"^no CIFAR-10 in data$"):
        lab.run()
    with open_bench_folder(lab.folder, REQUESTED, {}, False, lab.folder) as results:
        assert results.records == []


def test_a_point_refused_later_is_a_result(lab):
    lab.outcomes[8] = lambda point: failure(point, exit_code=2, why="too large")
    records = lab.run()
    assert [found["why"] for found in records if found["status"] == "failed"] == ["too large"]


def test_progress_tells_what_is_done_and_left(lab):
    lab.run()
    starts = [now for now in lab.heard if now.record is None]
    ends = [now for now in lab.heard if now.record is not None]
    assert [now.done for now in starts] == list(range(9))
    assert [now.left for now in starts] == list(range(9, 0, -1))
    assert (ends[-1].done, ends[-1].left) == (9, 0)
    assert starts[0].left_s is None
    assert starts[1].left_s == 8 * 3.0


def test_the_estimate_takes_each_point_as_long_as_it_took():
    quick, slow, new = (Point.of("mlp", "infer", batch, "cpu") for batch in (1, 2, 4))
    records = [record(quick, seconds=2.0), record(slow, seconds=10.0)]
    assert remaining_seconds([(quick, 2), (slow, 2)], records) == 12.0
    assert remaining_seconds([(new, 1)], records) == 6.0


_KILLED = """
import sys
from pathlib import Path

from stepscope.bench import measure_point, run
from stepscope.bench.grid import Point
from stepscope.bench.grid import BenchRequest
from stepscope.bench.run import open_bench_folder

class Tiny(Point):
    __slots__ = ()

    def command(self, measure_file):
        return ["tiny_program", str(self.batch), str(measure_file)]

request = BenchRequest(("m",), ("infer",), ("cpu",), batches=(1, 2, 3), rounds=2)
every = [Tiny("m", "infer", batch, "cpu") for batch in request.batches]
with open_bench_folder(Path("out"), request, {}, False, Path.cwd()) as results:
    run.run_grid(request, results, lambda now: None, measure_point.measure, every)
"""
_TINY = """
import json, os, sys, time
from pathlib import Path

batch, target = sys.argv[1:]
with open("started.txt", "a") as file:
    file.write(f"{batch} {os.getpid()}\\n")
if batch == "3" and Path("hang").exists():
    time.sleep(60)
Path(target).write_text(json.dumps({"error": None, "samples": 1}))
"""


def test_a_grid_killed_in_the_middle_goes_on_without_repeating_what_is_finished(tmp_path):
    (tmp_path / "killed.py").write_text(_KILLED)
    (tmp_path / "tiny_program.py").write_text(_TINY)
    (tmp_path / "hang").touch()
    started = tmp_path / "started.txt"
    command = [sys.executable, "killed.py"]
    parent = subprocess.Popen(command, cwd=tmp_path)
    _until(lambda: started.exists() and "3 " in started.read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    orphan = int(started.read_text().split()[-1])
    _until(lambda: not _alive(orphan))
    (tmp_path / "hang").unlink()

    subprocess.run(command, cwd=tmp_path, check=True)

    batches = [line.split()[0] for line in started.read_text().splitlines()]
    assert batches == ["1", "2", "3", "3", "3", "2", "1"]
    lines = (tmp_path / "out" / "records.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [(one["point"]["batch"], one["round"]) for one in found] == [
        *((1, 1), (2, 1), (3, 1)),
        *((3, 2), (2, 2), (1, 2)),
    ]
    assert {one["status"] for one in found} == {"ok"}


def _until(true, seconds=20.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
