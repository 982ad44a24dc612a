"""Whose code a frame is, told from its path."""

import pytest

from stepscope.record.frames import Frame, find_owner, is_program

HASH = "c" + "4k" * 25


@pytest.mark.parametrize(
    "file",
    [
        f"/tmp/torchinductor_ann/4k/{HASH}.py",
        f"/scratch/compiled/4k/{HASH}.py",
        "<eval_with_key>.12",
        "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py",
    ],
)
def test_generated_and_installed_code_is_not_the_programs(file):
    assert not is_program(file)


def test_the_caller_of_generated_code_is_answerable_for_it():
    stack = [
        Frame("call", f"/tmp/torchinductor_ann/4k/{HASH}.py", 812),
        Frame("forward", "/venv/lib/python3.12/site-packages/torch/_dynamo/eval_frame.py", 9),
        Frame("train", "/home/ann/ck/train.py", 40),
    ]
    owner = find_owner(stack)
    assert (owner.file, owner.line) == ("/home/ann/ck/train.py", 40)
