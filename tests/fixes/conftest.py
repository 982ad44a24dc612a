"""What the tests of fixes leave on a GPU."""

import gc

import pytest
import torch


@pytest.fixture(autouse=True)
def nothing_left_on_the_gpu() -> None:
    """Free what earlier tests left in cycles: a loader's worker that frees CUDA memory aborts."""
    if torch.cuda.is_initialized():
        gc.collect()
