"""Which GPU a program will know as CUDA device 0."""

import pytest

from stepscope.hardware.gpus import first_visible_gpu, visible_gpu_index

UUIDS = ["GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000"]


@pytest.mark.parametrize(
    ("value", "index"),
    [
        ("2,0", 2),
        (" 1 ", 1),
        ("3", None),
        ("-1", None),
        ("", None),
        ("NoDevFiles", None),
        ("GPU-bbbb", 2),
        ("GPU-AAAA2", 1),
        ("GPU-aaaa", None),
        ("GPU-cccc", None),
        ("MIG-GPU-bbbb3333-0000/1/0", 2),
        ("MIG-11111111-2222", None),
    ],
)
def test_visible_devices(value, index):
    assert first_visible_gpu({"CUDA_VISIBLE_DEVICES": value}, UUIDS) == index


def test_unset_means_the_first_gpu():
    assert first_visible_gpu({}, UUIDS) == 0
    assert first_visible_gpu({}, []) is None


def test_no_driver_no_gpu(monkeypatch):
    monkeypatch.setattr("stepscope.hardware.gpus.open_gpus", list)
    assert visible_gpu_index({"CUDA_VISIBLE_DEVICES": "0"}) is None
