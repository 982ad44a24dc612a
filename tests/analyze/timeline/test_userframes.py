"""Frames of the program are told from those of Python and of libraries."""

import pytest

from stepscope.analyze.timeline.names import is_user_frame


@pytest.mark.parametrize(
    ("frame", "users"),
    [
        ("train.py(12): main", True),
        ("/home/a/torch_models/run.py(1): <module>", True),
        ("test.py(1): <module>", True),
        ("models/net.py(12): forward", True),
        ("/home/me/work/net.py(12): forward", True),
        ("torch/nn/modules/conv.py(534): forward", False),
        ("torchvision/models/resnet.py(89): forward", False),
        ("/x/lib/python3.11/site-packages/foo/a.py(1): f", False),
        ("/usr/lib/python3.11/random.py(1): f", False),
        ("contextlib.py(80): inner", False),
        ("json/encoder.py(80): encode", False),
        ("<frozen os>(709): __getitem__", False),
        ("<built-in method conv2d of type object at 0x7f>", False),
        ("nn.Module: Conv2d_0", False),
    ],
)
def test_whose_frame_it_is(frame: str, users: bool) -> None:
    assert is_user_frame(frame) is users
