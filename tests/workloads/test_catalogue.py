"""Workloads are found by name, and what cannot be found is answered with what is possible."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.record.errors import UsageError
from stepscope.workloads.catalogue import WORKLOADS, find_workload

NAMES = [
    *("mlp", "simple_cnn", "resnet18", "resnet50", "efficientnet_b0", "vit_small", "unet", "lstm"),
    *("transformer", "transformer:characters"),
    *("gpt", "gpt:tiny", "gpt:small", "gpt:medium", "gpt:large", "gpt:xl"),
]


def refused(spec):
    with pytest.raises(UsageError) as caught:
        find_workload(spec)
    text = str(caught.value)
    assert "\n" not in text
    return text


def library(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("raise RuntimeError('nobody may import this')\n")


@pytest.fixture
def transformers(tmp_path, monkeypatch):
    """A library of that name with little tables, instead of the installed one."""
    library(tmp_path, "transformers")
    auto = tmp_path / "transformers" / "models" / "auto"
    auto.mkdir(parents=True)
    tables = {
        "CAUSAL_LM": ["gpt2", "llama", "bert"],
        "MASKED_LM": ["bert", "bart"],
        "SEQUENCE_CLASSIFICATION": ["bert", "gpt2", "t5"],
        "IMAGE_CLASSIFICATION": ["vit"],
    }
    (auto / "modeling_auto.py").write_text(
        "\n".join(
            f"MODEL_FOR_{kind}_MAPPING_NAMES = OrderedDict({[(name, 'Class') for name in names]})"
            for kind, names in tables.items()
        )
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


def test_every_built_in_model_is_there_under_its_name():
    assert sorted(WORKLOADS) == sorted(NAMES)
    assert all(find_workload(name).name == name for name in NAMES)


def test_each_has_what_its_task_needs():
    for workload in WORKLOADS.values():
        pixels = workload.task in ("images", "segmentation")
        assert (workload.size is not None) == pixels
        assert (workload.length is not None) == (not pixels)
        assert (workload.vocabulary is not None) == (not pixels)
        assert (workload.classes is None) == (workload.task == "language")
        assert ("generate" in workload.modes) == (workload.task == "language")


def test_gpt_is_its_small_size():
    assert find_workload("gpt").options == find_workload("gpt:small").options
    assert find_workload("gpt").parameters == find_workload("gpt:small").parameters


def test_an_unknown_name_gets_the_nearest_and_all_others():
    text = refused("resnet8")
    assert text.startswith("no workload named resnet8: did you mean resnet18?")
    assert all(name in text for name in NAMES)
    assert "file.py:factory, module:factory, torchvision:NAME, timm:NAME, hf:NAME" in text
    assert "did you mean" not in refused("zzzzzz")


@pytest.mark.parametrize("spec", ["", ":", "gpt:", ":factory", "gpt:huge", "a:"])
def test_half_a_name_is_an_unknown_one(spec):
    assert refused(spec).startswith(f"no workload named {spec}: ")


def test_a_factory_in_a_file_is_found_without_running_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(
        "import nothing_like_this\nif True:\n    from other import Net as Renamed\n"
        "made: int = 3\none, two = 1, 2\n\ndef make():\n    inner = 1\n\nclass Net: ...\n"
    )
    for name in ("make", "Net", "Renamed", "made", "two"):
        workload = find_workload(f"net.py:{name}")
        assert workload.task == "user"
        assert dict(workload.options) == {"file": "net.py", "factory": name}
    assert refused("net.py:inner") == "net.py:inner: net.py has no inner; it has make, Net"
    assert refused("net.py:Nett").endswith("has no Nett; it has Net, make")
    assert "net.py:factory" in refused("net.py")


def test_names_that_a_star_import_may_bring_are_left_to_the_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("from elsewhere import *\n")
    assert find_workload("net.py:anything").task == "user"


def test_a_file_that_is_missing_or_not_python_is_said_to_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text("x = 1\ndef make(:\n")
    assert refused("none.py:make") == "none.py:make: no file none.py"
    assert refused("broken.py:make").startswith("broken.py:make: broken.py:2 is not Python:")


def test_a_factory_of_a_module_is_found_without_importing_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "zoo" / "nets"
    package.mkdir(parents=True)
    (tmp_path / "zoo" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "__init__.py").write_text("")
    (package / "small.py").write_text("def make(): ...\n")
    workload = find_workload("zoo.nets.small:make")
    assert dict(workload.options) == {"module": "zoo.nets.small", "factory": "make"}
    assert "zoo" not in sys.modules
    assert "no module zoo.nets.large" in refused("zoo.nets.large:make")
    assert refused("zoo.nets.small:mak").endswith("has no mak; it has make")


@pytest.mark.parametrize("name", ["torchvision", "timm"])
def test_a_library_is_asked_for_its_model_later_but_must_be_there(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    expected = f"{name}:some needs {name}, which is not installed: pip install {name}"
    assert refused(f"{name}:some") == expected
    assert "name a model" in refused(f"{name}:")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    library(tmp_path, name)
    workload = find_workload(f"{name}:some")
    assert workload.task == "images"
    assert dict(workload.options) == {"name": "some"}


@pytest.mark.usefixtures("transformers")
def test_a_transformers_type_tells_its_task():
    assert find_workload("hf:gpt2").task == "language"
    assert find_workload("hf:gpt2").modes == ("train", "infer", "generate")
    assert find_workload("hf:bert").task == "characters"
    assert find_workload("hf:vit").task == "images"
    assert "did you mean llama?" in refused("hf:lama")
    assert refused("hf:t5").startswith("hf:t5: transformers builds no t5 here: use gpt2, llama")


@pytest.mark.usefixtures("transformers")
def test_a_transformers_folder_is_read_and_nothing_is_downloaded(tmp_path):
    config = tmp_path / "config.json"
    spec = f"hf:{tmp_path}"
    assert "nothing is downloaded" in refused(spec)
    config.write_text("{")
    assert "is not JSON" in refused(spec)
    config.write_text("{}")
    assert "has no model_type" in refused(spec)
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 77}))
    assert find_workload(spec).task == "language"
    assert find_workload(spec).vocabulary == 77


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from stepscope.workloads.catalogue import find_workload; "
        "find_workload('gpt'); "
        "print({'torch', 'numpy', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
