"""Fused attention where torch, transformers or the program had it off."""

import ast
import copy

import pytest
import torch
from fixing import fixed
from torch import nn
from torch.nn.attention import SDPBackend

from stepscope.fixes.arithmetic.sdpa import drops_second
from stepscope.fixes.inspect.user_code import SourceTree
from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError
from stepscope.record.fix_words import sentence


@pytest.fixture(autouse=True)
def put_back():
    yield
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_mem_efficient_sdp(True)


class Block(nn.Module):
    """Attention whose weights are dropped, or kept."""

    def __init__(self, keep=False):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.keep = keep
        self.weights = "unset"

    def forward(self, x):
        if self.keep:
            out, weights = self.attention(x, x, x)
            self.weights = weights
        else:
            out, _ = self.attention(x, x, x)
        return out


@pytest.fixture
def fused_calls(monkeypatch):
    """How often torch's fused attention was called."""
    calls = []
    original = nn.functional.scaled_dot_product_attention

    def counted(*args, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", counted)
    return calls


def test_attention_whose_weights_are_dropped_is_fused(tmp_path, fused_calls):
    model, x = Block(), torch.randn(2, 5, 8)
    plain = model(x)
    assert fused_calls == []
    with fixed(tmp_path, "sdpa") as run:
        out = model(x)
    assert len(fused_calls) == 1
    torch.testing.assert_close(out, plain)
    said = run.fixes()["sdpa"]
    assert (said["state"], said["kind"]) == ("applied", "numeric")
    assert "MultiheadAttention at" in said["where"][0]
    assert "test_sdpa.py:" in said["where"][0]


def test_training_goes_as_before_up_to_rounding(tmp_path):
    def train(model):
        stepper = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for seed in range(4):
            x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(seed))
            loss = model(x).square().mean()
            stepper.zero_grad()
            loss.backward()
            stepper.step()
            losses.append(loss.item())
        with torch.no_grad():
            losses.append(model.eval()(x).sum().item())
        return losses

    torch.manual_seed(0)
    model = Block()
    again = copy.deepcopy(model)
    plain = train(model)
    with fixed(tmp_path, "sdpa"):
        assert train(again) == pytest.approx(plain, rel=1e-4)
        copy.deepcopy(again).load_state_dict(again.state_dict())


def test_attention_whose_weights_are_used_is_left_alone(tmp_path, fused_calls):
    with fixed(tmp_path, "sdpa") as run:
        model = Block(keep=True)
        model(torch.randn(2, 5, 8))
    assert isinstance(model.weights, torch.Tensor)
    assert fused_calls == []
    assert "pass need_weights=False" in run.fixes()["sdpa"]["reasons"][0]


@pytest.mark.parametrize(
    ("source", "dropped"),
    [
        ("def f():\n    y = m(x)[0]", True),
        ("def f():\n    y, _ = m(x)", True),
        ("def f():\n    y, w = m(x)\n    return y", True),
        ("def f():\n    y, w = m(x)\n    return y, w", False),
        ("def f():\n    return m(x)", False),
        ("def f():\n    y = m(x)", False),
        ("def f():\n    y = m(x)[1]", False),
        ("def f():\n    global w\n    y, w = m(x)", False),
        ("def f():\n    y, w = m(x)\n    return lambda: w", False),
    ],
)
def test_the_source_shows_whether_weights_are_used(source, dropped):
    tree = SourceTree(source)
    call = next(node for node in ast.walk(tree.root) if isinstance(node, ast.Call))
    assert drops_second(call, tree) is dropped


def test_the_programs_switches_leave_fused_attention_on(tmp_path):
    with fixed(tmp_path, "sdpa") as run:
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        assert torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
    assert len(run.fixes()["sdpa"]["where"]) == 2
    assert "test_sdpa.py:" in run.fixes()["sdpa"]["where"][0]


def test_a_context_of_the_math_backend_allows_fused_ones(tmp_path):
    with fixed(tmp_path, "sdpa") as run:
        with torch.nn.attention.sdpa_kernel(SDPBackend.MATH):
            assert torch.backends.cuda.flash_sdp_enabled()
            assert torch.backends.cuda.mem_efficient_sdp_enabled()
        with torch.nn.attention.sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
            assert not torch.backends.cuda.flash_sdp_enabled()  # a fused one is chosen
    assert len(run.fixes()["sdpa"]["where"]) == 1


def test_a_program_that_wants_the_same_results_every_time_keeps_its_choice(tmp_path):
    torch.use_deterministic_algorithms(True)
    try:
        with fixed(tmp_path, "sdpa") as run:
            torch.backends.cuda.enable_flash_sdp(False)
            assert not torch.backends.cuda.flash_sdp_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert "deterministic results" in run.fixes()["sdpa"]["reasons"][0]


def tiny(**kwargs):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=16, n_embd=8, n_layer=2, n_head=2, **kwargs
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel._from_config(config, attn_implementation="eager").eval()


TOKENS = torch.arange(12).reshape(2, 6)


def test_a_model_of_transformers_is_switched(tmp_path, fused_calls):
    model = tiny()
    plain = model(TOKENS).logits
    with fixed(tmp_path, "sdpa") as run:
        out = model(TOKENS, labels=TOKENS)
    assert len(fused_calls) == 2
    torch.testing.assert_close(out.logits, plain, rtol=1e-4, atol=1e-4)
    assert run.fixes()["sdpa"]["where"] == ['GPT2LMHeadModel with attn_implementation="sdpa"']


def test_a_model_of_transformers_that_returns_weights_is_left_alone(tmp_path, fused_calls):
    with fixed(tmp_path / "config", "sdpa") as run:
        assert len(tiny(output_attentions=True)(TOKENS).attentions) == 2
    assert "returns attention weights" in run.fixes()["sdpa"]["reasons"][0]
    with fixed(tmp_path / "call", "sdpa") as run:
        model = tiny()
        model(TOKENS)
        assert len(model(TOKENS, output_attentions=True).attentions) == 2
    assert "attention weights are requested at" in run.fixes()["sdpa"]["reasons"][0]


class ByHand(nn.Module):
    """Attention as tutorials write it."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(-2, -1) / 8**0.5
        return scores.softmax(dim=-1) @ v


def test_attention_written_by_hand_is_named(tmp_path):
    with fixed(tmp_path, "sdpa") as run:
        ByHand()(torch.randn(2, 5, 8))
    reason = run.fixes()["sdpa"]["reasons"][0]
    assert "ByHand computes attention by hand at" in reason
    assert "test_sdpa.py:" in reason
    assert "scaled_dot_product_attention" in reason


def test_a_program_without_attention_is_told_so(tmp_path):
    with fixed(tmp_path, "sdpa") as run:
        nn.Linear(2, 2)(torch.zeros(1, 2))
    assert "no attention was found" in run.fixes()["sdpa"]["reasons"][0]


def test_second_derivatives_are_explained():
    error = RuntimeError("derivative for aten::_scaled_dot_product_x_backward is not implemented")
    assert "second derivatives" in sentence(fix_named("sdpa").explain(error, "penalty.backward()"))
    assert fix_named("sdpa").explain(RuntimeError("other"), "x") is None


def test_its_edit_and_its_values():
    edit = fix_named("sdpa").edit(None, 'model = AutoModel.from_pretrained("gpt2")')
    assert edit.line == 'model = AutoModel.from_pretrained("gpt2", attn_implementation="sdpa")'
    assert "need_weights=False" in fix_named("sdpa").edit(None, "y, _ = self.attn(x, x, x)").words
    with pytest.raises(UsageError, match="takes no value"):
        fix_named("sdpa").parse("flash")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_fused_kernels_run(tmp_path):
    model, x = Block().cuda().half(), torch.randn(2, 64, 8, device="cuda").half()
    with (
        fixed(tmp_path, "sdpa"),
        torch.profiler.profile() as profile,
        torch.nn.attention.sdpa_kernel(SDPBackend.MATH),
    ):
        model(x)
    names = {event.key for event in profile.key_averages()}
    assert any("flash_attention" in name or "efficient_attention" in name for name in names)
