"""Graphs of models and optimizer steps.

Without a GPU a stand-in records: its graphs run the recorded function again, into the same tensors.
"""

import inspect
import pickle
import random

import pytest
import torch
from fixing import fixed
from torch import nn

from stepscope.fixes.inspect import devices
from stepscope.fixes.launching.cuda_graph import fix
from stepscope.fixes.launching.cuda_graph.model import flatten_tensors
from stepscope.fixes.registry import fix_named, parse_fixes
from stepscope.record.errors import UsageError
from stepscope.record.fix_words import sentence

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class Replayed:
    """A stand-in for a CUDA graph."""

    count = 0

    def __init__(self, function, result):
        self.function, self.result = function, result

    def replay(self):
        Replayed.count += 1
        with torch.set_grad_enabled(self.result is not None):
            fresh = self.function()
        for old, new in zip(self.result or (), fresh or (), strict=True):
            if old is not None:
                old.detach().copy_(new.detach())


class Stand:
    """A stand-in for the recorder. Recording an update must not make one."""

    kind = "cpu"

    def try_out(self, function):
        function()

    def record(self, function):
        result = function() if inspect.ismethod(function) else None
        return Replayed(function, result), result


@pytest.fixture
def stand(monkeypatch):
    Replayed.count = 0
    monkeypatch.setattr(fix, "GraphRecorder", Stand)
    monkeypatch.setattr(fix.FIX, "needs", None)


class Net(nn.Module):
    """Dropout, BatchNorm and a second output that gets no gradient; counts Python's runs."""

    runs = 0

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.last = nn.Linear(8, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x, scale=1.0):
        type(self).runs += 1
        hidden = self.first(x)
        return {"out": self.last(hidden) * scale, "hidden": hidden, "name": "net"}


def train(
    device="cpu",
    steps=12,
    model=None,
    optimizer=torch.optim.SGD,
    none=True,
    every=1,
    sched=False,
    clip=None,
    autocast=None,
    **options,
):
    """Losses, outputs that were kept, and the model, of a training with uneven batches and
    evaluations in between."""
    torch.manual_seed(0)
    model = (model or Net)().to(device)
    optimizer = optimizer(model.parameters(), **({"lr": 0.05} | options))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) if sched else None
    data = torch.randn(steps, 8, 6, generator=torch.Generator().manual_seed(1)).to(device)
    losses, kept = [], []
    for number, x in enumerate(data):
        if number % 5 == 4:
            x = x[:5]
        with torch.autocast(device, torch.bfloat16, enabled=autocast is not None):
            out = model(x)["out"]
        kept.append(out)
        loss = out.float().square().mean()
        (loss / every).backward()
        if number % every == every - 1:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=none)
            if scheduler:
                scheduler.step()
        losses.append(loss.detach())
        if number % 4 == 3:
            model.eval()
            with torch.no_grad():
                kept.append(model(x)["out"])
            model.train()
    return torch.stack(losses), [one.detach().clone() for one in kept], model


def same(one, other):
    assert torch.equal(one[0], other[0])
    assert all(map(torch.equal, one[1], other[1]))
    mine, theirs = one[2].state_dict(), other[2].state_dict()
    assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
    grads = [p.grad is None for p in one[2].parameters()]
    assert grads == [p.grad is None for p in other[2].parameters()]


WAYS = {
    "plain": {},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "zeroed in place": {"none": False},
    "accumulated": {"every": 3},
    "scheduled": {"sched": True},
    "clipped": {"clip": 0.1, "none": False},
    "adamw": {"optimizer": torch.optim.AdamW, "fused": True},
    "adam": {"optimizer": torch.optim.Adam},
    "autocast": {"autocast": "bf16"},
}


@pytest.mark.parametrize("way", WAYS)
def test_replaying_changes_nothing(tmp_path, stand, way):
    plain = train(**WAYS[way])
    Net.runs = 0
    with fixed(tmp_path, "cuda_graph") as run:
        again = train(**WAYS[way])
    same(plain, again)
    assert Replayed.count >= 12  # forward and backward of six batches
    told = run.fixes()["cuda_graph"]
    assert told["state"] == "applied"
    assert told["kind"] == "numeric"
    (where,) = [where for where in told["where"] if "step" not in where]
    assert where.startswith("forward and backward of Net, called at")
    assert where.endswith("for inputs of 8×6")
    assert run.observer.core.steps == 12 // WAYS[way].get("every", 1)


def test_the_step_is_replayed_while_its_numbers_stay(tmp_path, stand):
    with fixed(tmp_path, "cuda_graph") as run:
        train(none=False)
    assert any("the step of SGD at" in where for where in run.fixes()["cuda_graph"]["where"])


def test_a_learning_rate_that_changes_is_not_frozen(tmp_path, stand):
    plain = train(sched=True, steps=40)
    with fixed(tmp_path, "cuda_graph") as run:
        same(plain, train(sched=True, steps=40))
    told = run.fixes()["cuda_graph"]
    assert "learning rate keeps changing" in told["reasons"][0]
    assert not any("the step" in where for where in told["where"])


def test_adam_without_a_fused_step_is_told_so(tmp_path, stand):
    with fixed(tmp_path, "cuda_graph") as run:
        train(optimizer=torch.optim.Adam)
        train(optimizer=torch.optim.RMSprop)
    reasons = run.fixes()["cuda_graph"]["reasons"]
    assert "add fused_optimizer" in reasons[0]
    assert "the step of RMSprop is not captured" in reasons[1]


def stepped(parameters, steps, loss_of):
    """The losses of some steps of SGD; `loss_of(number)` computes each."""
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    found = []
    for number in range(steps):
        optimizer.zero_grad()
        loss = loss_of(number)
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found)


def test_two_calls_before_backward_do_not_share_activations(tmp_path, stand):
    def losses():
        torch.manual_seed(0)
        model = Net()

        def loss(_):
            one, other = (model(torch.randn(8, 6))["out"] for _ in range(2))
            return (one - other).square().mean()

        return stepped(model.parameters(), 10, loss)

    plain = losses()
    with fixed(tmp_path, "cuda_graph"):
        assert torch.equal(losses(), plain)
    assert Replayed.count


class WithLoss(Net):
    """Computes its own loss, given a number to divide by."""

    def forward(self, x, count):
        return {"loss": super().forward(x)["out"].square().sum() / count}


def test_a_loss_that_the_program_scales_in_place_is_one_that_gets_gradients(tmp_path, stand):
    def losses():
        torch.manual_seed(0)
        model = WithLoss()

        def loss(_):
            found = model(torch.randn(8, 6), torch.tensor(24.0))["loss"]
            found *= 0.5
            return found

        return stepped(model.parameters(), 10, loss)

    plain = losses()
    with fixed(tmp_path, "cuda_graph") as run:
        assert torch.equal(losses(), plain)
    assert Replayed.count
    told = run.fixes()["cuda_graph"]
    assert told["state"] == "applied"
    assert told["where"][0].endswith("for inputs of 8×6 and a number")


def test_inputs_that_need_gradients_get_them(tmp_path, stand):
    def losses():
        torch.manual_seed(0)
        one, other = nn.Linear(6, 6), Net()

        def loss(_):
            return other(one(torch.randn(8, 6)), scale=2.0)["out"].square().mean()

        return stepped([*one.parameters(), *other.parameters()], 8, loss)

    plain = losses()
    with fixed(tmp_path, "cuda_graph") as run:
        assert torch.equal(losses(), plain)
    assert len(run.fixes()["cuda_graph"]["where"]) >= 2


def test_an_attribute_the_program_changes_is_not_frozen(tmp_path, stand):
    class Warming(Net):
        factor = 1.0

        def forward(self, x):
            return super().forward(x, self.factor)

    def losses():
        torch.manual_seed(0)
        model = Warming()

        def loss(number):
            if number % 8 == 7:
                model.factor = model.factor + 1.0
            return model(torch.randn(8, 6))["out"].square().mean()

        return stepped(model.parameters(), 16, loss)

    plain = losses()
    with fixed(tmp_path, "cuda_graph"):
        assert torch.equal(losses(), plain)
    assert Replayed.count


def test_weights_loaded_and_frozen_are_seen(tmp_path, stand):
    def losses():
        torch.manual_seed(0)
        model = Net()
        saved = {key: value.clone() for key, value in model.state_dict().items()}

        def loss(number):
            if number == 7:
                model.load_state_dict(saved)
            if number == 10:
                model.last.requires_grad_(False)
            return model(torch.randn(8, 6))["out"].square().mean()

        return stepped(model.parameters(), 14, loss)

    plain = losses()
    with fixed(tmp_path, "cuda_graph"):
        assert torch.equal(losses(), plain)


class Counting(Net):
    def forward(self, x):
        self.seen = getattr(self, "seen", 0) + 1
        return super().forward(x)


class Drawing(Net):
    def forward(self, x):
        return super().forward(x, random.random())


class Failing(Net):
    def forward(self, x):
        if type(self).runs == 3:
            type(self).runs += 1
            raise RuntimeError("called a synchronizing CUDA operation")
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Counting, "changes seen"),
        (Drawing, "draws random numbers on the host"),
        (Failing, "waits for the GPU (at tests/fixes/test_cuda_graph.py"),
    ],
)
def test_what_a_graph_would_leave_out_is_told(tmp_path, stand, model, reason):
    model.runs = 10
    random.seed(0)
    plain = train(model=model)
    model.runs = 0
    random.seed(0)
    with fixed(tmp_path, "cuda_graph") as run:
        same(train(model=model), plain)
    told = run.fixes()["cuda_graph"]
    assert reason in told["reasons"][0]
    assert not any("forward" in where for where in told["where"])


def test_recurrent_layers_are_left_alone_without_being_tried(tmp_path, stand):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(6, 4, num_layers=2, dropout=0.1)

        def forward(self, x):
            Net.runs += 1
            return self.lstm(x)[0]

    model, Net.runs = Tagger(), 0
    with fixed(tmp_path, "cuda_graph") as run:
        for _ in range(5):
            model(torch.randn(3, 2, 6)).sum().backward()
    assert "lstm is recurrent" in run.fixes()["cuda_graph"]["reasons"][0]
    assert Net.runs == 5


def test_hooks_and_strange_arguments_are_told(tmp_path, stand):
    with fixed(tmp_path, "cuda_graph") as run:
        for spoil in (
            lambda model: model.last.register_forward_hook(lambda *_: None),
            lambda model: model.last.weight.register_hook(lambda grad: None),
        ):
            model = Net()
            spoil(model)
            for _ in range(5):
                model(torch.randn(8, 6))["out"].sum().backward()
        net = Net()
        net.forward = lambda x, scale: Net.forward(net, x)
        net(torch.randn(8, 6), object())
        net = nn.Linear(6, 6)
        net.forward = lambda x: {x}
        net(torch.randn(8, 6))
    reasons = run.fixes()["cuda_graph"]["reasons"]
    assert "last has hooks" in reasons[0]
    assert "parameters have hooks" in reasons[1]
    assert "called with a object" in reasons[2]
    assert "returns a set" in reasons[3]


def test_hooks_behind_gradients_are_told(tmp_path, stand):
    model, seen = Net(), []
    model.last.weight.register_post_accumulate_grad_hook(seen.append)
    with fixed(tmp_path, "cuda_graph") as run:
        for _ in range(5):
            model(torch.randn(8, 6))["out"].sum().backward()
    assert len(seen) == 5
    assert "parameters have hooks" in run.fixes()["cuda_graph"]["reasons"][0]


def test_a_hook_that_comes_later_is_called(tmp_path, stand):
    model, seen = Net(), []
    with fixed(tmp_path, "cuda_graph") as run:
        for number in range(8):
            if number == 6:
                model.last.weight.register_hook(seen.append)
            model(torch.randn(8, 6))["out"].sum().backward()
    assert Replayed.count == 6  # steps 3 to 5, forward and backward, and no more
    assert len(seen) == 2
    assert "parameters have hooks" in run.fixes()["cuda_graph"]["reasons"][0]


def alone(model, loss):
    (grad,) = torch.autograd.grad(loss, model.last.weight, retain_graph=True)
    return grad


def by_backward(model, loss):
    loss.backward(inputs=[model.last.weight])
    return model.last.weight.grad


@pytest.mark.parametrize("pick", [alone, by_backward])
def test_gradients_of_single_parameters_are_no_work_for_a_graph(tmp_path, stand, pick):
    with fixed(tmp_path, "cuda_graph") as run:
        model = Net()
        for _ in range(6):
            assert pick(model, model(torch.randn(8, 6))["out"].sum()) is not None
    assert "gradients of single parameters" in run.fixes()["cuda_graph"]["reasons"][0]
    assert not Replayed.count


@pytest.mark.parametrize("pick", [alone, by_backward])
def test_single_gradients_asked_for_later_are_refused_and_explained(tmp_path, stand, pick):
    with fixed(tmp_path, "cuda_graph"):
        model = Net()
        for _ in range(5):
            model(torch.randn(8, 6))["out"].sum().backward()
        loss = model(torch.randn(8, 6))["out"].sum()
        with pytest.raises(RuntimeError, match="gradients of single parameters") as caught:
            pick(model, loss)
        assert pick(model, model(torch.randn(8, 6))["out"].sum()) is not None
    assert fix_named("cuda_graph").explain(caught.value, "") is not None


def test_backward_again_after_another_call_is_refused_and_explained(tmp_path, stand):
    with fixed(tmp_path, "cuda_graph"):
        model = Net()
        for _ in range(5):
            loss = model(torch.randn(8, 6))["out"].sum()
            loss.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="used in backward twice") as caught:
            loss.backward()
    assert "used in backward twice" in sentence(
        fix_named("cuda_graph").explain(caught.value, "loss.backward()")
    )


def test_a_gradient_for_another_output_is_refused_and_explained(tmp_path, stand):
    with fixed(tmp_path, "cuda_graph"):
        model = Net()
        for _ in range(5):
            result = model(torch.randn(8, 6))
            result["out"].sum().backward(retain_graph=True)
        result = model(torch.randn(8, 6))
        with pytest.raises(RuntimeError, match="in the first steps now has one") as caught:
            (result["out"].sum() + result["hidden"].sum()).backward()
    assert fix_named("cuda_graph").explain(caught.value, "") is not None
    assert fix_named("cuda_graph").explain(RuntimeError("other"), "") is None


def test_models_can_be_pickled(tmp_path, stand):
    with fixed(tmp_path, "cuda_graph"):
        model = train()[2]
        model.eval()
        x = torch.randn(4, 6)
        assert torch.equal(pickle.loads(pickle.dumps(model))(x)["out"], model(x)["out"])


def test_nests_of_tensors_are_taken_apart_and_put_together():
    x, y = torch.ones(2), torch.zeros(3)
    taken = flatten_tensors(((x, [y, 3]), {"flag": None}))
    assert taken.tensors == [x, y]
    assert taken.strange is None
    assert taken.together([y, x]) == ((y, [x, 3]), {"flag": None})
    assert taken.key == flatten_tensors(((x + 1, [y, 3]), {"flag": None})).key
    for other in (((x, [y, 4]), {"flag": None}), ((y, [y, 3]), {"flag": None}), (x, y)):
        assert flatten_tensors(other).key != taken.key
    assert flatten_tensors([torch.eye(2).to_sparse()]).strange == "Tensor"
    assert flatten_tensors([object()]).strange == "object"


def test_without_cuda_it_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "cuda_here", lambda: False)
    with fixed(tmp_path, "cuda_graph") as run:
        train(steps=1)
    assert run.fixes()["cuda_graph"]["reasons"] == ["no CUDA device"]


def test_its_edit_and_its_bad_pairs():
    assert "make_graphed_callables" in fix_named("cuda_graph").edit(None, "").words
    for other in ("compile", "checkpointing"):
        with pytest.raises(UsageError, match="cannot be combined"):
            parse_fixes(["cuda_graph", other])


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("way", WAYS)
def test_training_on_the_gpu_is_the_same(tmp_path, way):
    plain = train("cuda", 20, **WAYS[way])
    Net.runs = 0
    with fixed(tmp_path, "cuda_graph") as run:
        again = train("cuda", 20, **WAYS[way])
    assert Net.runs < 20
    torch.testing.assert_close(again[0], plain[0], rtol=1e-3, atol=1e-5)
    for mine, theirs in zip(again[1], plain[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-3)
    mine, theirs = again[2].state_dict(), plain[2].state_dict()
    for key in theirs:
        torch.testing.assert_close(mine[key], theirs[key], rtol=1e-3, atol=1e-4)
    assert run.fixes()["cuda_graph"]["state"] == "applied"


@pytest.mark.gpu
@needs_gpu
def test_dropout_draws_the_same_numbers_on_the_gpu(tmp_path):
    def drawn():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        x = torch.ones(32, 64, device="cuda")
        masks = []
        for _ in range(10):
            out = model(x)
            masks.append(out.detach() == 0)
            out.sum().backward()
            optimizer.step()
        return torch.stack(masks)

    plain = drawn()
    with fixed(tmp_path, "cuda_graph"):
        assert torch.equal(drawn(), plain)


class Waiting(Net):
    def forward(self, x):
        return super().forward(x, 1.0 if x.sum().item() > -1e9 else 0.5)


class Stopping(Net):
    """Fails only while it is captured, and after a random number was drawn."""

    def forward(self, x):
        result = super().forward(x)
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream().synchronize()
        return result


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("model", [Waiting, Stopping])
def test_a_model_that_cannot_be_captured_trains_on_as_it_did(tmp_path, model):
    plain = train("cuda", 12, model=model)
    with fixed(tmp_path, "cuda_graph") as run:
        again = train("cuda", 12, model=model)
    torch.testing.assert_close(again[0], plain[0])
    assert "test_cuda_graph.py" in run.fixes()["cuda_graph"]["reasons"][0]


@pytest.mark.gpu
@needs_gpu
def test_a_pinning_loader_goes_on_while_a_graph_is_recorded(tmp_path):
    from torch.utils.data import DataLoader, TensorDataset

    with fixed(tmp_path, "cuda_graph") as run:
        model = Net().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        loader = DataLoader(TensorDataset(torch.randn(320, 6)), 8, num_workers=1, pin_memory=True)
        for (x,) in loader:
            optimizer.zero_grad()
            model(x.cuda(non_blocking=True))["out"].square().mean().backward()
            optimizer.step()
    told = run.fixes()["cuda_graph"]
    assert any("the step of SGD" in where for where in told["where"])
