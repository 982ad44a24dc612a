"""`--on`: the one device that the trials of a tune run on."""

import pytest

from stepscope.measure.trial.host import host_named
from stepscope.record.errors import UsageError


class Gpu:
    def __init__(self, index):
        self.index = index

    def uuid(self):
        return f"GPU-{self.index}aaa"


@pytest.fixture
def gpus(monkeypatch):
    """Has this machine have so many GPUs."""

    def gpus(count):
        monkeypatch.setattr(
            "stepscope.hardware.gpus.open_gpus", lambda: [Gpu(index) for index in range(count)]
        )

    return gpus


def test_without_a_name_the_program_chooses():
    assert host_named(None).variables == {}


def test_on_the_cpu_a_program_sees_no_gpu(gpus):
    gpus(2)
    assert host_named("cpu").variables == {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    ("text", "visible", "sees"),
    [
        ("cuda", None, "0"),
        ("cuda:1", None, "1"),
        ("cuda:1", "3,2", "2"),
        ("cuda:0", "GPU-2aaa", "GPU-2aaa"),
    ],
)
def test_a_gpu_is_counted_as_programs_count_it(gpus, text, visible, sees):
    gpus(4)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert host_named(text, environ).variables == {"CUDA_VISIBLE_DEVICES": sees}


@pytest.mark.parametrize(
    ("text", "environ", "says"),
    [
        ("cuda:2", {}, "there is cpu, cuda:0, cuda:1"),
        ("cuda:0", {"CUDA_VISIBLE_DEVICES": ""}, "there is cpu"),
        ("cuda:1", {"CUDA_VISIBLE_DEVICES": "1,9,0"}, "there is cpu, cuda:0"),
        ("cuda:", {}, "there is cpu"),
        ("cuda:x", {}, "there is cpu"),
        ("tpu", {}, "there is cpu"),
        ("", {}, "there is cpu"),
        ("cuda:0,1", {}, "one device"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(gpus, text, environ, says):
    gpus(2)
    with pytest.raises(UsageError) as caught:
        host_named(text, environ)
    assert says in str(caught.value)
