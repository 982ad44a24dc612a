"""The built-in models have their published sizes, and do the same work in every form."""

import pytest
import torch

from stepscope.record.errors import UsageError
from stepscope.workloads.catalogue import WORKLOADS, find_workload
from stepscope.workloads.models.build import build_model
from stepscope.workloads.models.convnets import DropSamples

# Small enough to run; each still has all its layers.
SMALL = {"resnet50": 32, "efficientnet_b0": 32, "vit_small": 32, "unet": 32}


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Layers this small only wait for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def inputs(workload, batch=2):
    if workload.task in ("images", "segmentation"):
        return torch.randn(batch, 3, workload.size, workload.size)
    return torch.randint(0, workload.vocabulary, (batch, workload.length))


def small(name):
    workload = find_workload(name)
    if workload.length is not None:
        return build_model(workload, length=16)
    return build_model(workload, size=SMALL.get(name, workload.size))


def refused(workload, **options):
    with pytest.raises(UsageError) as caught:
        build_model(workload, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", WORKLOADS)
def test_parameters_are_as_many_as_the_catalogue_says(name):
    workload = WORKLOADS[name]
    with torch.device("meta"):
        model = build_model(workload).model
    assert sum(parameter.numel() for parameter in model.parameters()) == workload.parameters
    assert model.training


@pytest.mark.parametrize("name", [n for n in WORKLOADS if not n.startswith("gpt")] + ["gpt:tiny"])
def test_outputs_have_the_shape_of_the_task_and_depend_on_every_parameter(name):
    torch.manual_seed(0)
    built = small(name)
    asked = built.workload
    outputs = built.model(inputs(asked))
    shapes = {
        "images": (2, asked.classes),
        "segmentation": (2, asked.classes, asked.size, asked.size),
        "characters": (2, asked.classes),
        "language": (2, asked.length, asked.vocabulary),
    }
    assert tuple(outputs.shape) == shapes[asked.task]
    assert torch.isfinite(outputs).all()
    outputs.square().mean().backward()
    assert all(parameter.grad is not None for parameter in built.model.parameters())


@pytest.mark.parametrize("name", ["simple_cnn", "resnet18", "efficientnet_b0", "unet", "vit_small"])
def test_the_layout_of_images_changes_no_result(name):
    torch.manual_seed(0)
    built = small(name)
    model, images = built.model.eval(), inputs(built.workload)
    with torch.no_grad():
        plain = model(images)
        model.to(memory_format=torch.channels_last)
        last = model(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(last, plain, rtol=1e-4, atol=1e-4)


def test_other_sizes_and_classes_are_built_on_request():
    built = build_model(find_workload("simple_cnn"), size=224, classes=7)
    assert built.model(torch.randn(1, 3, 224, 224)).shape == (1, 7)
    assert (built.workload.size, built.workload.classes) == (224, 7)
    assert build_model(find_workload("unet"), size=48).model(torch.randn(1, 3, 48, 48)).shape == (
        1,
        3,
        48,
        48,
    )
    assert build_model(find_workload("gpt:tiny"), length=2000).model.positions == 2000


def test_sizes_that_do_not_fit_are_refused_in_one_line():
    assert "--size 100 is not a multiple of 16" in refused(find_workload("unet"), size=100)
    assert "multiple of its patches' 16 pixels" in refused(find_workload("vit_small"), size=100)
    assert "--size 8 or more" in refused(find_workload("simple_cnn"), size=4)


def test_blocks_are_dropped_for_whole_samples_and_only_in_training():
    torch.manual_seed(0)
    drop = DropSamples(0.5)
    dropped = drop(torch.ones(1000, 3, 2, 2)).flatten(1)
    assert (dropped.min(dim=1).values == dropped.max(dim=1).values).all()
    assert sorted(dropped.unique().tolist()) == [0.0, 2.0]
    assert 0.9 < dropped.mean() < 1.1
    assert (drop.eval()(torch.ones(4, 3, 2, 2)) == 1).all()


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    return build_model(find_workload("gpt:tiny")).model.eval()


@torch.no_grad()
def generated(model, tokens, start, **options):
    logits, cache = model.prefill(tokens[:, :start], **options)
    found = [logits]
    for place in range(start, tokens.shape[1]):
        found.append(model.decode(tokens[:, place : place + 1], cache))
    return torch.stack(found, dim=1), cache


@pytest.mark.parametrize("prompt", [1, 2, 5])
def test_going_on_from_a_cache_gives_what_the_whole_sequence_gives(tiny, prompt):
    tokens = torch.randint(0, 256, (3, 12))
    with torch.no_grad():
        whole = tiny(tokens)[:, prompt - 1 :]
    found, cache = generated(tiny, tokens, prompt)
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-5)
    assert cache.position.item() == 12


def test_a_cache_stays_in_place_and_serves_the_next_prompt(tiny):
    tokens = torch.randint(0, 256, (2, 9))
    first, cache = generated(tiny, tokens, 4, length=9)
    places = [layer.keys.data_ptr() for layer in cache.layers]
    assert cache.layers[0].keys.shape == (2, 4, 9, 64)
    again, same = generated(tiny, tokens, 4, cache=cache)
    assert same is cache
    assert [layer.keys.data_ptr() for layer in cache.layers] == places
    torch.testing.assert_close(again, first, rtol=0, atol=0)


def test_a_cache_longer_than_the_model_is_refused(tiny):
    with pytest.raises(ValueError, match="2000 tokens exceed the model's 1024 positions"):
        tiny.generate_cache(1, 2000)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in WORKLOADS if not n.startswith("gpt")])
def test_each_model_compiles_into_one_graph(name):
    built = small(name)
    model = built.model.eval()
    images = inputs(built.workload)
    with torch.no_grad():
        plain = model(images)
        # torch's compiler leaves recurrent layers out of its graphs.
        compiled = torch.compile(model, fullgraph=name != "lstm", backend="eager")(images)
    torch.testing.assert_close(compiled, plain)


@pytest.mark.slow
def test_decoding_compiles_once_for_all_tokens():
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    model = build_model(find_workload("gpt:tiny")).model.eval()
    tokens = torch.randint(0, 256, (2, 10))
    plain, _ = generated(model, tokens, 4)
    model.compile(fullgraph=True, backend="aot_eager")
    compiled, _ = generated(model, tokens, 4)
    torch.testing.assert_close(compiled, plain)
    assert counters["stats"]["unique_graphs"] == 2
