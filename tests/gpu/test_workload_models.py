"""Built-in models give what torchvision's and timm's give, and decode in a CUDA graph."""

import pytest

torch = pytest.importorskip("torch")

from stepscope.workloads.catalogue import find_workload  # noqa: E402
from stepscope.workloads.models.build import build_model  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _device():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture(autouse=True)
def _exact():
    """No TF32: it would hide a difference."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def unlike_new(model):
    """Statistics and scales as training would leave them: new ones hide which belongs where."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, std=0.1)
    return model


@torch.no_grad()
def assert_same(name, theirs):
    theirs = unlike_new(theirs).cuda().eval()
    ours = build_model(find_workload(name)).model.cuda().eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(4, 3, 224, 224, device="cuda")
    expected = theirs(images)
    assert expected.std() > 0
    torch.testing.assert_close(ours(images), expected, rtol=1e-3, atol=1e-3 * expected.std().item())


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "efficientnet_b0"])
def test_torchvisions_weights_load_and_give_its_outputs(name):
    models = pytest.importorskip("torchvision.models")
    classes = find_workload(name).classes
    assert_same(name, models.get_model(name, weights=None, num_classes=classes))


def test_timms_weights_load_and_give_its_outputs():
    timm = pytest.importorskip("timm")
    assert_same("vit_small", timm.create_model("vit_small_patch16_224", pretrained=False))


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ("torchvision:mobilenet_v3_small", 224),
        ("torchvision:inception_v3", 299),
        ("timm:convnext_atto", 224),
    ],
)
@torch.no_grad()
def test_a_librarys_model_is_built_for_its_own_size(spec, size):
    pytest.importorskip(spec.partition(":")[0])
    built = build_model(find_workload(spec))
    assert built.workload.size == size
    assert built.model.training
    images = torch.randn(2, 3, size, size, device="cuda")
    assert built.model.cuda()(images).shape == (2, 1000)


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_a_name_the_library_does_not_have_gets_the_nearest(library):
    from stepscope.record.errors import UsageError

    pytest.importorskip(library)
    with pytest.raises(UsageError, match="resnet18"):
        build_model(find_workload(f"{library}:resnet_18"))


@torch.no_grad()
def decoded(model, step, tokens, cache):
    """Logits of every token after the first four, by one call of `step` each."""
    model.prefill(tokens[:, :4], cache)
    return torch.stack([step(tokens[:, n : n + 1]).clone() for n in range(4, 12)], dim=1)


@torch.no_grad()
def test_decoding_can_be_recorded_once_and_replayed():
    model = build_model(find_workload("gpt:tiny")).model.cuda().eval()
    tokens = torch.randint(0, 256, (2, 12), device="cuda")
    cache = model.generate_cache(2, 16)
    whole = model(tokens)[:, 4:]
    plain = decoded(model, lambda token: model.decode(token, cache), tokens, cache)
    torch.testing.assert_close(plain, whole, rtol=1e-3, atol=1e-4)

    graph, place = torch.cuda.CUDAGraph(), tokens[:, :1].clone()
    with torch.cuda.graph(graph):
        logits = model.decode(place, cache)

    def replay(token):
        place.copy_(token)
        graph.replay()
        return logits

    torch.testing.assert_close(decoded(model, replay, tokens, cache), whole, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@torch.no_grad()
def test_decoding_compiled_with_cuda_graphs_gives_the_same():
    model = build_model(find_workload("gpt:tiny")).model.cuda().eval()
    tokens = torch.randint(0, 256, (2, 12), device="cuda")
    whole = model(tokens)[:, 4:]
    compiled = torch.compile(model.decode, mode="reduce-overhead", fullgraph=True)
    cache = model.generate_cache(2, 16)
    for _ in range(3):
        found = decoded(model, lambda token: compiled(token, cache), tokens, cache)
        torch.testing.assert_close(found, whole, rtol=1e-3, atol=1e-4)
