"""Small programs on a CUDA device, bare and observed: exit code, output, losses, weights, buffers
and the state of the random generators are the same with the kernel window, without it, with all
exact fixes at once, and with each exact fix that applies. With a numeric fix they end as before.

The programs are the cells of `../harm/programs/cuda/*.py`.
"""

from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import warm
from harm_programs import (
    FOLDER,
    HarmProgram,
    assert_applied,
    assert_as_meant,
    assert_recorded,
    assert_unharmed,
    read_programs,
    run_bare,
    run_observed,
)

pytestmark = [pytest.mark.gpu, pytest.mark.launches]
PROGRAMS = read_programs(FOLDER / "cuda")
EXACT = ("cache", "persistent", "pin", "prefetch", "recycle", "nosync", "lazyitem", "affinity")
WAYS = {
    "window": ["--window-at", "4", "--window", "2"],
    "no_window": ["--no-window"],
    "all_exact": ["--no-window", *(word for name in EXACT for word in ("--fix", name))],
}


@pytest.fixture(scope="module")
def _device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def test_there_are_enough_programs_and_each_has_a_name_of_its_own():
    names = Counter(program.name for program in PROGRAMS)
    assert len(names) == len(PROGRAMS) >= 60


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize(
    ("program", "way"),
    [
        pytest.param(p, way, id=f"{p.name}-{way}", marks=pytest.mark.xdist_group(p.name))
        for p in PROGRAMS
        for way in (*WAYS, *p.fixes)
        if not (p.unfixed and way == "all_exact")
    ],
)
def test_a_program_does_the_same_under_observation(tmp_path, program, way):
    options = WAYS.get(way, ["--no-window", "--fix", way])
    bare = _bare(program)
    assert_as_meant(program, bare)
    seen = run_observed(program, tmp_path / "observed", options)
    try:
        assert_unharmed(program, bare, seen)
    except AssertionError:
        again = run_bare(program, tmp_path / "again")
        assert again.stdout == bare.stdout, "the bare program does not repeat itself"
        raise
    assert_recorded(program, seen, windows=way == "window")
    if way in program.fixes:
        assert_applied(seen)


@cache
def _bare(program: HarmProgram) -> warm.Said:
    """Once for all ways that run in this process."""
    with TemporaryDirectory() as folder:
        return run_bare(program, Path(folder) / "bare")
