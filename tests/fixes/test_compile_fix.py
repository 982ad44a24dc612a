"""Compiling models."""

import copy
import pickle

import pytest
import torch
from fixing import fixed
from torch import nn

from stepscope.fixes.launching import compile as compiling
from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError
from stepscope.record.fix_words import sentence


class Net(nn.Module):
    """Notes whether Python ran it as it is."""

    plain = 0

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x):
        if not torch.compiler.is_compiling():
            Net.plain += 1
        return self.inner(x)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    Net.plain = 0
    yield
    torch._dynamo.reset()


@pytest.fixture
def eager(monkeypatch):
    monkeypatch.setattr(compiling, "_backend", "eager")


def train(model=None, device="cpu"):
    """Losses of a short training with an uneven last batch and an evaluation."""
    torch.manual_seed(0)
    model = (model or Net()).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(18, 6, device=device)
    losses, kept = [], []
    for _ in range(2):
        model.train()
        for x in data.split(4):
            optimizer.zero_grad()
            out = model(x)
            kept.append(out.detach())
            loss = out.square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        model.eval()
        with torch.no_grad():
            kept.append(model(data))
    return model, torch.stack(losses), torch.cat([one.flatten() for one in kept])


def test_a_model_really_is_compiled_and_steps_are_counted_as_before(tmp_path, eager):
    with fixed(tmp_path / "plain") as plain:
        _, losses, outputs = train()
    assert Net.plain == 12
    with fixed(tmp_path / "compiled", "compile") as run:
        _, again, same = train()
    assert Net.plain == 12
    torch.testing.assert_close(again, losses)
    torch.testing.assert_close(same, outputs)
    assert run.observer.core.steps == plain.observer.core.steps == 10
    told = run.fixes()["compile"]
    assert told["kind"] == "numeric"
    assert told["where"][0].startswith("Net, called at")
    assert "test_compile_fix.py" in told["where"][0]


@pytest.mark.parametrize("value", ["reduce-overhead", "max-autotune", "default,dynamic"])
def test_the_other_modes_train_too(tmp_path, eager, value):
    _, losses, outputs = train()
    with fixed(tmp_path, f"compile={value}") as run:
        _, again, same = train()
    torch.testing.assert_close(again, losses)
    torch.testing.assert_close(same, outputs)
    assert run.fixes()["compile"]["value"] == value


def accumulate(device="cpu", none=True):
    """Losses of a training with two batches to a step, and where gradients lay after the first
    one's backward and at the second one's."""
    torch.manual_seed(0)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = next(model.parameters())
    losses, places, before = [], [], 0
    for number, x in enumerate(torch.randn(16, 4, 6, device=device)):
        loss = model(x).square().mean()
        if number % 2:
            places.append((before, first.grad.data_ptr()))
        loss.backward()
        before = first.grad.data_ptr()
        losses.append(loss.detach())
        if number % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=none)
    return torch.stack(losses), places


@pytest.mark.parametrize("none", [True, False])
def test_gradients_that_are_added_to_are_put_where_no_replay_writes(tmp_path, eager, none):
    losses, places = accumulate(none=none)
    assert all(before == after for before, after in places)
    with fixed(tmp_path, "compile=reduce-overhead"):
        again, places = accumulate(none=none)
    torch.testing.assert_close(again, losses)
    moved = [before != after for before, after in places]
    assert moved[0]
    assert all(moved) is none  # else they stay where they were put


def test_mode_and_dynamic_reach_torch(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: given.append(options))
    monkeypatch.setattr(compiling, "missing_tools", lambda kind: None)
    with fixed(tmp_path, "compile=max-autotune,dynamic"):
        Net()(torch.randn(2, 6))
    assert given == [{"mode": "max-autotune", "dynamic": True}]


def test_state_pickles_and_copies_are_those_of_the_model(tmp_path, eager):
    with fixed(tmp_path, "compile"):
        model, _, _ = train()
        assert list(model.state_dict()) == list(Net().state_dict())
        x = torch.randn(2, 6)
        for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            torch.testing.assert_close(other(x), model(x))


@pytest.mark.parametrize("model", [nn.Linear(6, 3), nn.Sequential(nn.Linear(6, 3), nn.ReLU())])
def test_models_of_torch_nn_are_compiled_too(tmp_path, eager, model):
    with fixed(tmp_path, "compile") as run:
        train(model)
        frames = torch._dynamo.utils.counters["frames"]["ok"]
    assert frames >= 1
    assert pickle.loads(pickle.dumps(model))._compiled_call_impl is None
    assert "(a class of torch.nn)" in run.fixes()["compile"]["where"][0]


def test_two_models_are_compiled_each(tmp_path, eager):
    with fixed(tmp_path, "compile") as run:
        one, other = Net(), nn.Sequential(nn.Linear(3, 6), nn.Tanh())
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (one, other)]
        for _ in range(3):
            one(other(torch.randn(4, 3))).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert Net.plain == 0
    assert len(run.fixes()["compile"]["where"]) == 2


def test_a_model_the_program_compiles_is_left_alone(tmp_path, eager):
    with fixed(tmp_path, "compile") as run:
        torch.compile(Net(), backend="eager")(torch.randn(2, 6))
    assert "the program compiles it itself" in run.fixes()["compile"]["reasons"][0]


def test_without_a_compiler_it_is_told_so(tmp_path, monkeypatch):
    from torch._inductor import cpp_builder, exc

    def none():
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with fixed(tmp_path, "compile") as run:
        train()
    assert Net.plain == 12
    assert "no C++ compiler: install g++" in run.fixes()["compile"]["reasons"][0]


def test_a_gpu_needs_triton_and_a_compiler(monkeypatch):
    from torch.utils import _triton

    monkeypatch.setattr(compiling, "find_spec", lambda name: None)
    assert compiling.absent_tools("cuda") == compiling.NO_TRITON
    monkeypatch.setattr(compiling, "find_spec", lambda name: object())
    monkeypatch.setattr(_triton, "has_triton", lambda: False)
    assert compiling.missing_tools("cuda") == compiling.NO_TRITON
    monkeypatch.setattr(_triton, "has_triton", lambda: True)
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    assert compiling.missing_tools("cuda") == compiling.NO_C_COMPILER
    monkeypatch.setattr(compiling.shutil, "which", lambda name: f"/bin/{name}")
    assert compiling.missing_tools("cuda") is None


def test_failures_are_explained():
    overwritten = RuntimeError(
        "accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run."
    )
    assert "compile=default" in sentence(
        fix_named("compile").explain(overwritten, "loss.backward()")
    )
    broken = torch._dynamo.exc.Unsupported("no such thing\nand more")
    failed = fix_named("compile").explain(broken, "model(x)")
    assert failed.error == "Unsupported: no such thing"
    assert fix_named("compile").explain(ValueError("other"), "model(x)") is None


def test_its_edit_and_its_values():
    assert "model.compile()" in fix_named("compile").edit("default", "").words
    words = fix_named("compile").edit("reduce-overhead,dynamic", "").words
    assert 'model.compile(mode="reduce-overhead", dynamic=True)' in words
    assert fix_named("compile").parse(None) == "default"
    with pytest.raises(UsageError, match="use default, reduce-overhead"):
        fix_named("compile").parse("fast")


@pytest.mark.slow
def test_inductor_trains_on_the_cpu(tmp_path):
    if compiling.missing_tools("cpu"):
        pytest.skip("no C++ compiler")
    _, losses, outputs = train()
    with fixed(tmp_path, "compile") as run:
        _, again, same = train()
    torch.testing.assert_close(again, losses)
    torch.testing.assert_close(same, outputs)
    assert run.fixes()["compile"]["state"] == "applied"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("none", [True, False])
def test_accumulated_gradients_survive_replays_on_the_gpu(tmp_path, none):
    losses, _ = accumulate("cuda", none)
    with fixed(tmp_path, "compile=reduce-overhead") as run:
        again, _ = accumulate("cuda", none)
    torch.testing.assert_close(again, losses, rtol=1e-3, atol=1e-5)
    assert run.fixes()["compile"]["state"] == "applied"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("value", ["default", "reduce-overhead"])
def test_it_trains_on_the_gpu_and_outputs_may_be_kept(tmp_path, value):
    _, losses, outputs = train(device="cuda")
    with fixed(tmp_path, f"compile={value}") as run:
        _, again, same = train(device="cuda")
    torch.testing.assert_close(again, losses, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(same, outputs, rtol=1e-3, atol=1e-4)
    assert run.fixes()["compile"]["state"] == "applied"
