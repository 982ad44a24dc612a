"""Computing blocks again in backward."""

import pickle

import cloudpickle
import pytest
import torch
from fixing import fixed
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils._python_dispatch import TorchDispatchMode

from stepscope.fixes.inspect.models import is_checkpointed
from stepscope.fixes.registry import fix_named, parse_fixes
from stepscope.record.errors import UsageError
from stepscope.record.fix_words import sentence


class Block(nn.Module):
    """Dropout, a BatchNorm and a buffer its result depends on."""

    def __init__(self, spectral):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
        self.last = spectral_norm(nn.Linear(8, 8)) if spectral else nn.Linear(8, 8)

    def forward(self, x):
        return x + self.last(torch.relu(self.inner(x)))


class Runs(TorchDispatchMode):
    """Counts how often blocks run, by their one call of relu; blocks know nothing of it."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.relu.default
        return func(*args, **(kwargs or {}))


class Model(nn.Module):
    def __init__(self, spectral=False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(spectral) for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(steps=5, spectral=False):
    """Losses and the final state of a short training, the same at every call."""
    torch.manual_seed(0)
    model = Model(spectral)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(12 - step, 8)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, model.state_dict()


def same(one, other):
    assert all(map(torch.equal, one[0], other[0]))
    assert one[1].keys() == other[1].keys()
    assert all(torch.equal(one[1][key], other[1][key]) for key in one[1])


@pytest.mark.parametrize("spectral", [False, True])
def test_blocks_run_again_in_backward_and_nothing_else_changes(tmp_path, spectral):
    with Runs() as runs:
        plain = train(spectral=spectral)
        assert runs.count == 15
        with fixed(tmp_path, "checkpointing") as run:
            again = train(spectral=spectral)
    assert runs.count == 15 + 30
    same(plain, again)  # dropout, running statistics and power iterations included
    told = run.fixes()["checkpointing"]
    assert told["state"] == "applied"
    assert told["kind"] == "exact"
    assert told["where"][0].startswith("3 blocks (Block) of Model, called at")
    assert "test_checkpointing.py" in told["where"][0]


def test_activations_of_blocks_are_not_kept(tmp_path):
    def kept():
        seen = []
        model, x = Model(), torch.randn(12, 8)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
            model(x)
        return len(seen)

    plain = kept()
    with fixed(tmp_path, "checkpointing"):
        assert kept() < plain / 3


def test_evaluation_and_other_models_of_the_class_run_once(tmp_path):
    with fixed(tmp_path, "checkpointing"):
        train(1)
        with Runs() as runs:
            other = Block(False)
            other(torch.randn(4, 8)).sum().backward()
            model = Model()
            model.eval()
            model(torch.randn(4, 8)).sum().backward()
            model.train()
            with torch.no_grad():
                model(torch.randn(4, 8))
    assert runs.count == 7


def test_gradients_of_gradients_and_two_backwards_work(tmp_path):
    def grads():
        torch.manual_seed(1)
        model = Model()
        x = torch.randn(6, 8, requires_grad=True)
        out = model(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (out.square().mean() + grad.square().mean()).backward()
        return x.grad

    plain = grads()
    with fixed(tmp_path, "checkpointing"):
        assert torch.equal(grads(), plain)


def test_layers_computed_again_are_not_taken_for_models(tmp_path):
    with fixed(tmp_path, "checkpointing") as run:
        train(3)
        facts = (run.folder / "facts.jsonl").read_text()
    assert facts.count('"root"') == 1


def test_models_can_be_pickled_and_their_classes_by_value(tmp_path):
    with fixed(tmp_path, "checkpointing"):
        model = Model()
        x = torch.randn(4, 8)
        model(x)
        model.eval()
        copy = pickle.loads(pickle.dumps(model))
        assert torch.equal(copy(x), model(x))
        cloudpickle.register_pickle_by_value(__import__(__name__))
        try:
            assert cloudpickle.dumps(Block)
        finally:
            cloudpickle.unregister_pickle_by_value(__import__(__name__))


def test_a_model_without_repeated_blocks_is_told_so(tmp_path):
    with fixed(tmp_path, "checkpointing") as run:
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))(torch.randn(2, 8))
    assert "no repeated blocks hold" in run.fixes()["checkpointing"]["reasons"][0]


def test_a_model_the_program_compiles_is_told_so(tmp_path):
    with fixed(tmp_path, "checkpointing") as run:
        torch.compile(Model(), backend="eager")(torch.randn(2, 8))
    assert "the program compiles it" in run.fixes()["checkpointing"]["reasons"][0]


def test_models_of_transformers_use_their_own_way(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=20, n_positions=8)

    def losses():
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config)
        tokens = torch.randint(0, 20, (2, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        return found, model

    plain, _ = losses()
    with fixed(tmp_path, "checkpointing") as run:
        again, model = losses()
        assert is_checkpointed(model)
    assert all(map(torch.equal, plain, again))
    assert "GPT2LMHeadModel" in run.fixes()["checkpointing"]["where"][0]


def test_its_edit_and_its_bad_pairs():
    assert "checkpoint(block" in fix_named("checkpointing").edit(None, "").words
    with pytest.raises(UsageError, match="cannot be combined"):
        parse_fixes(["checkpointing", "compile"])


def test_a_block_that_does_something_else_is_explained():
    error = torch.utils.checkpoint.CheckpointError("a different number of tensors")
    assert "recomputed" in sentence(fix_named("checkpointing").explain(error, "loss.backward()"))
    assert fix_named("checkpointing").explain(RuntimeError("other"), "") is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_it_saves_memory_and_is_exact_on_the_gpu(tmp_path):
    def run_once():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True)
        model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.randn(16, 128, 128, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().cpu())
        return losses, torch.cuda.max_memory_allocated()

    plain, usual = run_once()
    with fixed(tmp_path, "checkpointing"):
        again, less = run_once()
    assert all(map(torch.equal, plain, again))
    assert less < 0.7 * usual
