"""The programs, run now under `stepscope run`: is the planted cause what is found first?"""

import pytest
from table import GOAL, programs, run, totals

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def rows_of(device, tmp_path):
    return [run(program, tmp_path / program.name) for program in programs(device)]


def judge(rows):
    planted = [row for row in rows if not row.program.healthy]
    told = f"{totals(rows)} {[(row.program.name, row.found[:2], row.problem) for row in rows]}"
    assert sum(row.ok for row in planted) >= GOAL * len(planted), told
    assert all(row.ok for row in rows if row.program.healthy), told


def test_on_the_cpu(tmp_path):
    judge(rows_of("cpu", tmp_path))


@pytest.mark.gpu
def test_on_the_gpu(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    judge(rows_of("cuda", tmp_path))
