"""Patches of models and loops: the right variable, the right statement, or none."""

import pytest
from patching import at, calls_apply, half, project

PLAIN = """
    import torch
    from torch import nn

    model = nn.Linear(4, 2).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = nn.MSELoss()
    for x, y in loader:
        loss = loss_fn(model(x), y)
        loss.backward()
"""


def test_a_model_is_compiled_and_rearranged_after_it_is_made(tmp_path):
    made = project(tmp_path, PLAIN)
    patch = made.patch(
        "channels_last",
        "compile=max-autotune",
        channels_last=at(8, object="Linear"),
        compile=at(8, object="Linear"),
    )
    assert (
        'model = nn.Linear(4, 2).to("cuda")\n'
        "model = model.to(memory_format=torch.channels_last)\n"
        'model.compile(mode="max-autotune")\n'
        "optimizer ="
    ) in made.patched(patch)
    assert patch.by_hand == ()


@pytest.mark.parametrize(
    ("wrapping", "expected"),
    [
        ("net = nn.DataParallel(model)", "{}net = "),
        ("net = DDP(model.to(0))", "{}net = "),
        ("net = torch.optim.swa_utils.AveragedModel(model)", "{}net = "),
        ("net = DDP(torch.compile(model))", "{}net = "),
        ("other = torch.compile(model)\nnet = DDP(other)", "{}other = "),
        ("fabric = Fabric()\nopt, net = fabric.setup(opt, model)", "{}fabric = "),
        ("fabric = Fabric()\nnet = fabric.setup_module(model)", "{}fabric = "),
        ("net = DDP(Net())", "net = DDP(Net())\nnet.module.compile()\n"),
        ("net = torch.compile(Net())", "net = torch.compile(Net())\nnet.compile()\n"),
        ("net = other.compile(model)", "net = other.compile(model)\nnet.compile()\n"),
        ("net = suite.setup(model)", "net = suite.setup(model)\nnet.compile()\n"),
        ("net = DDP(*model)", "net = DDP(*model)\nnet.module.compile()\n"),
    ],
)
def test_a_model_is_changed_before_a_wrapper_is_built_on_it(tmp_path, wrapping, expected):
    head = "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    made = project(tmp_path, f"{head}model = Net()\n{wrapping}\nnet(x)\n")
    patch = made.patch("compile", compile=at(4 + len(wrapping.splitlines()), object="Net"))
    assert expected.format("model = Net()\nmodel.compile()\n") in made.patched(patch)


def test_a_wrapper_in_the_place_of_its_model_is_seen_through(tmp_path):
    made = project(
        tmp_path,
        """
        import torch
        from torch import nn
        class Trainer:
            def __init__(self):
                self.net = Net()
                self.net = nn.parallel.DistributedDataParallel(self.net)
            def step(self, x):
                return self.net(x)
        """,
    )
    patch = made.patch("channels_last", channels_last=at(8, object="Net"))
    assert (
        "        self.net = Net()\n"
        "        self.net = self.net.to(memory_format=torch.channels_last)\n"
        "        self.net = nn.parallel"
    ) in made.patched(patch)


def test_a_model_of_torch_nn_gets_a_call_since_its_own_method_compiles_nothing(tmp_path):
    made = project(tmp_path, PLAIN)
    patch = made.patch("compile", compile=at(8, object="Linear", of_torch_nn=True))
    assert "model = torch.compile(model, …)" in calls_apply(patch)["compile"]


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (
            """
            import torch
            def train(net, loader, loss_fn):
                for x in loader:
                    loss_fn(net(x)).backward()
            def main():
                model = resnet50()
                model.cuda()
                train(model, loader, loss_fn=torch.nn.L1Loss())
            """,
            4,
            "    model = resnet50()\n    model.compile()\n    model.cuda()",
        ),
        (
            """
            import torch
            class Trainer:
                def __init__(self, net):
                    self.net = ResNet(
                        18,
                    )
                def step(self, x):
                    return self.net(x)
            """,
            8,
            "            18,\n        )\n        self.net.compile()\n",
        ),
        (
            """
            import torch
            class Trainer:
                def step(self, net, x):
                    return net(x)
            net = ResNet()
            net = wrap(net)
            Trainer().step(net, 3)
            """,
            4,
            "net = wrap(net)\nnet.compile()\nTrainer()",
        ),
    ],
    ids=["handed over", "attribute", "method"],
)
def test_the_variable_is_followed_to_where_the_model_is_made(tmp_path, text, line, expected):
    made = project(tmp_path, text)
    patch = made.patch("compile", compile=at(line, object="ResNet"))
    assert expected in made.patched(patch)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import torch\ntrainer.fit(model, loader)\n", 2),
        ("import torch\na, b = make()\nloss = a(b(x))\n", 3),
        ("import torch\nfor net in nets:\n    net(x)\n", 3),
        ("import torch\nnet = make(); y = net(x)\nnet(y)\n", 3),
    ],
    ids=["a framework calls it", "two could be it", "in a list", "a line of two statements"],
)
def test_a_model_whose_variable_is_not_clear_is_compiled_by_a_call(tmp_path, text, line):
    made = project(tmp_path, text)
    patch = made.patch("compile", compile=at(line, object="ResNet"))
    assert f"train.py:{line}" in calls_apply(patch)["compile"]
    assert 'stepscope.apply("compile")\n' in made.patched(patch)


def test_a_call_is_put_under_autocast_and_what_it_returns_is_float32_again(tmp_path):
    made = project(
        tmp_path,
        """
        import torch.nn as nn

        for x, y in loader:
            out = model(
                x,
            )  # logits
            loss = criterion(out, y)
        with torch.no_grad():
            right += (model(x).argmax(1) == y).sum()
        """,
        forward=4,
        evaluation=9,
    )
    patch = made.patch("amp", amp=half("bf16", "cuda"))
    assert made.patched(patch) == (
        "import torch.nn as nn\n"
        "import torch\n"
        "\n"
        "for x, y in loader:\n"
        '    with torch.autocast("cuda", dtype=torch.bfloat16):\n'
        "        out = model(\n"
        "            x,\n"
        "        )  # logits\n"
        "    out = out.float()\n"
        "    loss = criterion(out, y)\n"
        "with torch.no_grad():\n"
        '    with torch.autocast("cuda", dtype=torch.bfloat16):\n'
        "        right += (model(x).argmax(1) == y).sum()\n"
    )


def test_an_output_with_a_loss_of_its_own_stays_as_it_is(tmp_path):
    made = project(tmp_path, "import torch\nout = model(**batch)\nout.loss.backward()\n", forward=2)
    after = made.patched(made.patch("amp=bf16", amp=half("bf16", "cpu")))
    assert after == (
        "import torch\n"
        'with torch.autocast("cpu", dtype=torch.bfloat16):\n'
        "    out = model(**batch)\n"
        "out.loss.backward()\n"
    )


def test_autocast_and_arguments_go_together_in_one_statement(tmp_path):
    made = project(
        tmp_path,
        """
        import torch
        loss = criterion(model(x.to(device)),
                         y)
        """,
        forward=2,
    )
    patch = made.patch("pin", "amp", pin=at(2), amp=half("bf16", "cuda"))
    assert (
        "    loss = criterion(model(x.to(device, non_blocking=True)),\n"
        "                     y)\n"
        "loss = loss.float()\n"
    ) in made.patched(patch)


@pytest.mark.parametrize(
    "statement",
    [
        "return model(x)",
        "if model(x): pass",
        "a, b = model(x)",
        "model(x).sum().backward()",
        "x = 1; y = model(x)",
        "if x: y = model(x)",
        "with torch.no_grad(): y = model(x)",
        "for y in model(x):\n        print(y)",
    ],
)
def test_other_statements_are_left_out_of_autocast(tmp_path, statement):
    made = project(tmp_path, f"import torch\ndef f(x):\n    {statement}\n", forward=3)
    patch = made.patch("amp", amp=half("bf16", "cuda"))
    assert "train.py:3" in calls_apply(patch)["amp"]
    assert f"    {statement}\n" in made.patched(patch)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "\tif x:\n\t\ty = model(\n\t\t\tx)\n",
            "\tif x:\n\t\t{}\n\t\t\ty = model(\n\t\t\t\tx)\n\t\ty = y.float()\n",
        ),
        (
            '    y = model("""a\n  b\n    """, x)\n',
            '    {}\n        y = model("""a\n  b\n    """, x)\n    y = y.float()\n',
        ),
        (
            '    y = model(f"""a\n  {x}\n""",\n      x)\n',
            '    {}\n        y = model(f"""a\n  {x}\n""",\n          x)\n    y = y.float()\n',
        ),
        (
            "    with a:\n        for b in c:\n            y = model(x)\n        d()\n",
            "    with a:\n        for b in c:\n            {}\n                y = model(x)\n"
            "            y = y.float()\n        d()\n",
        ),
        (
            "    @d\n    def g():\n        y = model(x)\n        return y\n",
            "    @d\n    def g():\n        {}\n            y = model(x)\n        y = y.float()\n"
            "        return y\n",
        ),
    ],
    ids=["tabs", "a string", "an f-string", "blocks", "a decorated function"],
)
def test_what_is_indented_means_the_same(tmp_path, before, after):
    line = 3 + before[: before.index("y = model")].count("\n")
    made = project(tmp_path, f"import torch\ndef f(x):\n{before}", forward=line)
    patch = made.patch("amp", amp=half("bf16", "cpu"))
    context = 'with torch.autocast("cpu", dtype=torch.bfloat16):'
    assert made.patched(patch) == f"import torch\ndef f(x):\n{after.replace('{}', context)}"


def test_half_precision_that_needs_a_loss_scale_is_applied_by_a_call(tmp_path):
    made = project(tmp_path, "import torch\ny = model(x)\n", forward=2)
    patch = made.patch("amp=fp16", amp=half("fp16", "cuda"))
    assert 'stepscope.apply("amp=fp16")\n' in made.patched(patch)


def test_synchronisations_are_deleted(tmp_path):
    made = project(
        tmp_path,
        """
        import torch
        for x in loader:
            step(x)
            torch.cuda.synchronize()  # timing
            if x:
                torch.cuda.synchronize()
            y = torch.cuda.synchronize()
        """,
    )
    where = [at(line) for line in (4, 6)]
    patch = made.patch("nosync", nosync=where)
    assert made.patched(patch) == (
        "import torch\n"
        "for x in loader:\n"
        "    step(x)\n"
        "    if x:\n"
        "        pass\n"
        "    y = torch.cuda.synchronize()\n"
    )
    assert patch.by_hand == ()


def test_synchronisations_inside_statements_are_dropped_by_a_call(tmp_path):
    made = project(tmp_path, "import torch\ny = torch.cuda.synchronize()\n")
    assert "train.py:2" in calls_apply(made.patch("nosync", nosync=at(2)))["nosync"]


def test_losses_are_summed_on_the_device_and_read_after_the_loop(tmp_path):
    made = project(
        tmp_path,
        """
        import torch
        for epoch in range(2):
            total, right = 0.0, 0
            for x, y in loader:
                total += loss.item() * len(x)
                hits = (out.argmax(1) == y).sum()
                right += hits.item()
            print(total, right)
        """,
    )
    where = [at(5), at(7)]
    after = made.patched(made.patch("lazyitem", lazyitem=where))
    assert "        total += loss.detach().double() * len(x)\n" in after
    assert "        right += hits.detach()\n" in after
    assert "    total = float(total)\n    right = int(right)\n    print(total, right)\n" in after


@pytest.mark.parametrize(
    "body",
    [
        "total += loss.item()\n    print(total)",
        "total += loss.item() + other.item()",
        "losses.append(loss.item())",
        "total += loss.item()\n    if done: return total",
        "self.total += loss.item()",
    ],
)
def test_sums_that_are_used_in_the_loop_are_left_as_they_are(tmp_path, body):
    text = f"import torch\ndef f():\n  for x in loader:\n    {body}\n"
    made = project(tmp_path, text)
    patch = made.patch("lazyitem", lazyitem=at(4))
    assert "train.py:4" in calls_apply(patch)["lazyitem"]
    assert text.partition("\n")[2] in made.patched(patch)


def test_an_optimizer_gets_its_flag(tmp_path):
    made = project(tmp_path, PLAIN)
    patch = made.patch("fused_optimizer", fused_optimizer=at(5))
    assert "SGD(model.parameters(), lr=0.1, fused=True)" in made.patched(patch)
