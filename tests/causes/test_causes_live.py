"""The programs, run now under `stepscope run`: is the planted cause what is found first?"""

import pytest
from table import GOAL, programs, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def missed(device, tmp_path):
    """(share of the planted causes found first, what was found instead of the others, and what
    healthy programs were told)."""
    rows = [run(program, tmp_path / program.name) for program in programs(device)]
    planted = [row for row in rows if not row.program.healthy]
    wrong = {row.program.name: (row.found[:2], row.problem) for row in rows if not row.ok}
    healthy = {row.program.name for row in rows if row.program.healthy}
    share = sum(row.ok for row in planted) / len(planted)
    return share, wrong, healthy & set(wrong)


def test_on_the_cpu(tmp_path):
    share, wrong, ill = missed("cpu", tmp_path)
    assert share >= GOAL, wrong
    assert not ill, wrong


@pytest.mark.gpu
def test_on_the_gpu(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    share, wrong, ill = missed("cuda", tmp_path)
    assert share >= GOAL, wrong
    assert not ill, wrong
