"""Numbers read late where they are merely summed."""

import copy
import json
import math
import pickle

import numpy as np
import pytest
import torch
from fixing import fixed

from stepscope.fixes.inspect import devices
from stepscope.fixes.inspect.user_code import SourceTree
from stepscope.fixes.registry import fix_named
from stepscope.fixes.waiting.lazyitem import LateNumber, reason_needed_now
from stepscope.record.fix_words import sentence


@pytest.fixture
def on_cpu(monkeypatch):
    """Scalars on the CPU are answered late too."""
    monkeypatch.setattr(fix_named("lazyitem"), "devices", ("cpu",))
    monkeypatch.setattr(fix_named("lazyitem"), "needs", None)


def late(value):
    asked = []

    def get():
        asked.append(value)
        return value

    return LateNumber(get), asked


def train():
    """Summed losses, weighted losses and counts of a small training loop, and its weights."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total, weighted, right, shown = 0.0, 0, 0, []
    for step in range(30):
        x, y = torch.randn(5, 8), torch.randint(3, (5,))
        out = model(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        weighted += loss.item() * x.size(0) / 3
        right += (out.argmax(1) == y).sum().item()
        if step % 7 == 6:
            shown.append(f"{total / 7:.6f} {total} {right}")
            total = 0.0
    return shown, total / 3, weighted / 30, right / 150, [p.detach() for p in model.parameters()]


def test_sums_are_the_same_to_the_last_bit(tmp_path, on_cpu):
    plain = train()
    with fixed(tmp_path, "lazyitem") as run:
        late_ = train()
    assert plain[:4] == late_[:4]
    assert all(type(value) is float for value in late_[1:4])
    assert all(torch.equal(a, b) for a, b in zip(plain[4], late_[4], strict=True))
    said = run.fixes()["lazyitem"]
    assert (said["state"], said["kind"], len(said["where"])) == ("applied", "exact", 3)
    assert "test_lazyitem.py" in said["where"][0]


def test_a_sum_waits_only_when_it_is_printed(tmp_path, on_cpu, monkeypatch):
    waited = []
    monkeypatch.setattr(
        "stepscope.fixes.waiting.lazyitem._begin_reading",
        lambda t: lambda: waited.append(1) or t.tolist(),
    )
    with fixed(tmp_path, "lazyitem"):
        total = 0.0
        for _ in range(3):
            total += torch.tensor(1.5).item()
        assert waited == []
        assert str(total) == "4.5"
    assert len(waited) == 3


def test_values_needed_as_numbers_are_left_alone(tmp_path, on_cpu):
    loss = torch.tensor(2.5)
    with fixed(tmp_path, "lazyitem") as run:
        kept = [loss.item()]
        if loss.item() > 2:
            kept.append(loss.item())
        print(f"{loss.item():.3f}")
    assert all(type(value) is float for value in kept)
    said = run.fixes()["lazyitem"]
    assert said["state"] == "not applicable"
    assert any("needed at once" in reason for reason in said["reasons"])
    assert any("handed on at line" in reason for reason in said["reasons"])


def test_a_library_that_reads_a_number_gets_it(tmp_path, on_cpu):
    with fixed(tmp_path, "lazyitem") as run:
        namespace = {"t": torch.tensor(4.0)}
        exec(compile("v = t.item()", "<string>", "exec"), namespace)
        assert type(namespace["v"]) is float
    assert run.fixes()["lazyitem"]["state"] == "not applicable"


def test_a_machine_without_cuda_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "cuda_here", lambda: False)
    with fixed(tmp_path, "lazyitem") as run:
        total = 0.0
        total += torch.tensor(1.0).item()
        assert type(total) is float
    assert run.fixes()["lazyitem"]["reasons"] == ["no CUDA device"]


def test_a_late_number_is_asked_for_once_and_only_when_needed():
    one, asked = late(2.5)
    total = 0.0 + one * 4
    assert asked == []
    assert f"{total:.2f}" == "10.00"
    assert total > 9
    assert asked == [2.5]


def test_aliases_of_a_sum_keep_their_value():
    total = 0.0 + late(1.0)[0]
    before = total
    total += late(2.0)[0]
    assert (before.settle(), total.settle()) == (1.0, 3.0)


def test_a_long_sum_keeps_few_terms_waiting():
    total, terms = 0.0, []
    for number in range(1000):
        term, asked = late(number / 7)
        terms.append(asked)
        total += term
    assert sum(not asked for asked in terms) <= 9
    expected = 0.0
    for number in range(1000):
        expected += number / 7
    assert total.settle() == expected


def test_a_late_number_behaves_like_the_number():
    for value in (2.5, -3.0, 7):
        number = late(value)[0]
        assert isinstance(number, type(value))
        assert (str(number), repr(number), format(number)) == (str(value), repr(value), str(value))
        assert (number - 1, 1 - number, number**2, 2 / number) == (
            value - 1,
            1 - value,
            value**2,
            2 / value,
        )
        assert (number - 0.5, number % 2, divmod(number, 2)) == (
            value - 0.5,
            value % 2,
            divmod(value, 2),
        )
        assert (-number, abs(number), round(number, 1), int(number)) == (
            -value,
            abs(value),
            round(value, 1),
            int(value),
        )
        assert (math.exp(number), math.floor(number)) == (math.exp(value), math.floor(value))
        assert number == value
        assert hash(number) == hash(value)
        assert "%.3f %s" % (number, number) == "%.3f %s" % (value, value)  # noqa: UP031
        assert np.float64(2) + number == np.float64(2) + value
        assert torch.equal(torch.ones(2) * number, torch.ones(2) * value)
        assert pickle.loads(pickle.dumps(number)) == value
        assert type(copy.deepcopy(number)) is type(value)
        assert json.dumps(number + 0 - 0) == json.dumps(value)
    assert not late(0.0)[0]
    with pytest.raises(TypeError):
        [1, 2, 3][late(1.0)[0]]
    with pytest.raises(ZeroDivisionError):
        late(1.0)[0] / 0


GOOD = [
    "t = 0\nfor x in y:\n    t += l.item()\nprint(t / n)",
    "def f():\n    t = 0.0\n    t += l.item() * x.size(0)\n    return t / len(y), n",
    "def f():\n    v = l.item()\n    s = 0.9 * s + 0.1 * v\n    print('%.3f %d' % (s, n))",
    "t = 0\nt = t + l.item() / 4\nif t > 3:\n    print('{:.3f}'.format(t), end='')",
    "l.item()",
    "def g():\n    t = 1\n    return t\nt = 0\nt += l.item()",
    "t = 0\ntry:\n    t += l.item()\nexcept (KeyboardInterrupt, ValueError):\n    pass",
    "t = 0\ntry:\n    pass\nexcept RuntimeError:\n    t += l.item()",
    "try:\n    def f():\n        t = 0\n        t += l.item()\nexcept RuntimeError:\n    pass",
    "def f():\n    t += l.item()\n    assert t < 10\n    q = math.exp(t)\n    history.append(q)",
]
BAD = [
    ("print(l.item())", "needed at once"),
    ("x = float(l.item())", "needed at once"),
    ("def f():\n    t = 0\n    t += l.item()\n    return t", "returned at line 4"),
    ("def f():\n    v = l.item()\n    return v / 2", "returned at line 3"),
    ("self.t += l.item()", "handed on"),
    ("h.append(l.item())", "handed on"),
    ("t = 0\nt += l.item()\nh.append(t)", "handed on at line 3"),
    ("t = 0\nt += l.item()\nw.log({'loss': t})", "handed on at line 3"),
    ("t = 0\nt += l.item()\nm = max(t, 2)", "handed on at line 3"),
    ("def f():\n    global t\n    t += l.item()", "other functions"),
    ("t = 0\nt += l.item()\ndef f():\n    return t", "returned at line 4"),
    ("class A:\n    t = l.item()", "of a class"),
    ("s = sum(l.item() for l in ls)", "handed on"),
    ("a = b = l.item()", "handed on"),
    ("def f():\n    v = l.item()\n    best = v\n    return best", "returned at line 4"),
    ("p.set_postfix(loss=l.item())", "handed on"),
    ("t = 0\ntry:\n    t += l.item()\nexcept RuntimeError:\n    pass", "caught at line 4"),
    ("t = 0\ntry:\n    t += l.item()\nexcept Exception:\n    pass", "caught at line 4"),
    ("t = 0\ntry:\n    t += l.item()\nexcept (KeyError, a.Error):\n    pass", "caught at line 4"),
    ("t = 0\ntry:\n    if t:\n        t += l.item()\nexcept:\n    pass", "caught at line 5"),
]


def judged(source):
    tree = SourceTree(source)
    return [
        reason_needed_now(node, tree)
        for node in tree.calls.values()
        if getattr(node.func, "attr", "") == "item"
    ]


@pytest.mark.parametrize("source", GOOD)
def test_values_that_are_only_summed_may_come_late(source):
    assert judged(source) == [None]


@pytest.mark.parametrize(("source", "reason"), BAD)
def test_values_that_go_elsewhere_may_not(source, reason):
    assert reason in sentence(judged(source)[0])


def test_its_edit_sums_the_tensor():
    edit = fix_named("lazyitem").edit(None, "        total += loss.item()")
    assert edit.line == "        total += loss.detach().double()"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_sums_are_the_same_to_the_last_bit(tmp_path):
    values = torch.randn(200, device="cuda")

    def summed():
        total = 0.0
        for value in values:
            loss = value * 1.5
            total += loss.item()
            loss.zero_()  # after the read, in the order of the stream
        return total / 200

    plain = summed()
    with fixed(tmp_path, "lazyitem") as run:
        assert summed() == plain
    assert run.fixes()["lazyitem"]["state"] == "applied"


def test_modes_of_the_program_see_only_that_it_asks_for_the_number(tmp_path, on_cpu):
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    seen = []
    loss = torch.tensor(0.5)
    with fixed(tmp_path, "lazyitem") as run:
        total = 0.0
        with torch.device("meta"), Functions(), Dispatched():
            for _ in range(3):
                total += loss.item()
        assert total == 1.5
    assert run.fixes()["lazyitem"]["state"] == "applied"
    assert seen == []
