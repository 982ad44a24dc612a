"""A user's own model: what a factory may return, and what is said of everything else."""

import sys
from typing import Any, NamedTuple

import pytest
import torch

from stepscope.record.errors import UsageError
from stepscope.workloads.catalogue import find_workload
from stepscope.workloads.models.build import build_model
from stepscope.workloads.models.from_user import repeat_to_batch


class Pair(NamedTuple):
    image: Any
    note: str


def refused(workload, **options):
    with pytest.raises(UsageError) as caught:
        build_model(workload, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


USERS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, outputs=5):
        super().__init__()
        self.norm = nn.BatchNorm2d(3).eval()
        self.head = nn.Linear(3, outputs)
    def forward(self, images):
        return self.head(self.norm(images).mean((2, 3)))

class Words(nn.Module):
    def forward(self, batch):
        return batch.get("ids").float()

def with_function():
    return Net(), lambda batch: torch.zeros(batch, 3, 8, 8), lambda outputs: outputs.sum()

def with_example():
    return Words(), {"ids": torch.arange(6).reshape(2, 3), "scale": torch.ones(5), "note": "x"}

instance = Net(4)
number = 3
def raises():
    return helper()
def helper():
    raise KeyError("no such thing")
def nothing(): ...
def four(): return Net(), 1, 2, 3
def bad_inputs(): return Net(), 3
def bad_loss(): return Net(), torch.zeros(1, 3, 8, 8), 3
def leaves(): raise SystemExit(1)
def words(): return Words()
def picture(): return nn.Conv2d(3, 2, 1)
def needs(size): ...
"""


@pytest.fixture
def users(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "usersnet.py").write_text(USERS)
    yield lambda name: find_workload(f"usersnet.py:{name}")
    sys.modules.pop("usersnet", None)


def test_a_bare_module_is_an_image_classifier_with_its_own_classes(users):
    built = build_model(users("Net"))
    assert (built.user, built.workload.task) == (None, "images")
    assert (built.workload.size, built.workload.classes) == (224, 5)
    assert built.model.training
    assert not built.model.norm.training
    assert build_model(users("instance"), size=32).workload.classes == 4


def test_a_factory_brings_inputs_as_a_function_and_a_loss(users):
    built = build_model(users("with_function"))
    assert built.workload.task == "user"
    assert built.user.inputs(7).shape == (7, 3, 8, 8)
    assert built.user.loss(torch.ones(2)) == 2
    assert built.workload.modes == ("train", "infer")


def test_an_example_is_repeated_to_the_batch_and_without_a_loss_it_only_infers(users):
    built = build_model(users("with_example"))
    batch = built.user.inputs(3)
    assert batch["ids"].tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    assert batch["scale"].shape == (5,)
    assert batch["note"] == "x"
    assert built.user.loss is None
    assert built.workload.modes == ("infer",)


def test_examples_keep_their_form():
    pair = repeat_to_batch([(torch.zeros(4, 2), None), torch.tensor(3)], 2)
    assert isinstance(pair, list)
    assert pair[0][0].shape == (2, 2)
    assert pair[0][1] is None
    assert pair[1] == 3
    named = repeat_to_batch(Pair(torch.zeros(1, 2), "x"), 3)
    assert named.image.shape == (3, 2)
    assert named.note == "x"


def test_a_module_of_the_users_is_imported(users):
    workload = find_workload("usersnet:with_function")
    sys.path.insert(0, "")
    assert build_model(workload).user is not None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("raises", "KeyError: 'no such thing' (usersnet.py:28)"),
        ("leaves", "SystemExit: 1 (usersnet.py:33)"),
        ("nothing", "returned None; a factory returns a module, (module, inputs) or"),
        ("four", "returned a tuple; a factory returns"),
        ("number", "number is a int, not a function or module"),
        ("bad_inputs", "its inputs are a int, not tensors or a function of batch"),
        ("bad_loss", "its loss is a int, not a function of outputs"),
        ("words", "it does not take images [N, 3, 224, 224]"),
        ("picture", "returns [1, 2, 224, 224], not logits [N, classes]"),
        ("needs", "TypeError: needs() missing 1 required positional argument: 'size'"),
    ],
)
def test_what_a_factory_does_wrong_is_said_in_one_line(users, name, text):
    assert f"usersnet.py:{name}: {text}" in refused(users(name))


def test_a_file_that_cannot_be_imported_is_said_to_be(users, tmp_path):
    (tmp_path / "other.py").write_text("import no_such_library\ndef make(): ...\n")
    text = refused(find_workload("other.py:make"))
    assert text.startswith("other.py:make: ModuleNotFoundError: No module named")


def test_classes_that_a_users_module_does_not_have_are_refused(users):
    assert "it has 5 classes, not 10" in refused(users("Net"), classes=10)
