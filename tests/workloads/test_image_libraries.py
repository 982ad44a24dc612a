"""Models of torchvision and timm: stand-ins of the libraries tell how they were asked."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from torch import nn

from stepscope.record.errors import UsageError
from stepscope.workloads.catalogue import Workload
from stepscope.workloads.models.build import build_model


def refused(workload, **options):
    with pytest.raises(UsageError) as caught:
        build_model(workload, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


class Recorded(nn.Linear):
    """A library's model that tells what it was built with."""

    def __init__(self, name, options):
        super().__init__(1, 1)
        self.name, self.options = name, options


def foreign(library, name):
    make = f"stepscope.workloads.models.from_libraries:{library}_model"
    return Workload(f"{library}:{name}", "", "images", make, {"name": name}, classes=10)


@pytest.fixture
def torchvision(monkeypatch):
    models = ModuleType("torchvision.models")
    weights = SimpleNamespace(transforms=SimpleNamespace(keywords={"crop_size": 299}))
    models.list_models = lambda module: ["inception_v3", "resnet18", "vit_b_16"]
    models.get_model_weights = lambda name: [weights] if name == "inception_v3" else []
    models.get_model = lambda name, **options: Recorded(name, options)
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


@pytest.mark.usefixtures("torchvision")
def test_torchvision_models_come_without_weights_at_their_own_size():
    built = build_model(foreign("torchvision", "resnet18"))
    assert built.model.options == {"weights": None, "num_classes": 10}
    assert built.workload.size == 224
    inception = build_model(foreign("torchvision", "inception_v3"))
    assert inception.workload.size == 299
    assert inception.model.options["aux_logits"] is False
    vit = build_model(foreign("torchvision", "vit_b_16"), size=64)
    assert vit.model.options["image_size"] == 64
    assert "resnet18" in refused(foreign("torchvision", "resnet8"))


@pytest.fixture
def timm(monkeypatch):
    library = ModuleType("timm")
    library.is_model = lambda name: name in ("vit", "cnn", "grey")
    library.list_models = lambda: ["vit", "cnn", "grey"]
    sizes = {"vit": (3, 384, 384), "cnn": (3, 288, 288), "grey": (1, 28, 28)}
    library.get_pretrained_cfg = lambda name: SimpleNamespace(
        input_size=sizes[name], fixed_input_size=name == "vit"
    )

    def create(name, **options):
        if "img_size" in options and options["img_size"] == 7:
            raise RuntimeError("7 is\nno size")
        return Recorded(name, options)

    library.create_model = create
    monkeypatch.setitem(sys.modules, "timm", library)


@pytest.mark.usefixtures("timm")
def test_timm_models_come_at_their_default_size_and_learn_of_another():
    assert build_model(foreign("timm", "vit")).workload.size == 384
    assert build_model(foreign("timm", "vit"), size=224).model.options["img_size"] == 224
    cnn = build_model(foreign("timm", "cnn"), size=64)
    assert cnn.workload.size == 64
    assert cnn.model.options == {"pretrained": False, "num_classes": 10}
    assert "images of 1 channels" in refused(foreign("timm", "grey"))
    assert "not one of timm's models (3): vit" in refused(foreign("timm", "vits"))
    assert "timm could not build it: 7 is no size" in refused(foreign("timm", "vit"), size=7)


def test_a_library_that_cannot_be_imported_is_said_to_be(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert "timm cannot be imported" in refused(foreign("timm", "vit"))
