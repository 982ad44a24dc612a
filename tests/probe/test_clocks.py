"""A program that times itself: fixes stay on, the probe's own clocks stop."""

import torch
from fixing import fixed
from torch import nn

from stepscope.store.table import read_table


def train(steps):
    """The dtypes a model's output had, step by step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    inner = []
    model[0].register_forward_hook(lambda module, args, output: inner.append(output.dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = model(torch.ones(3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return inner


def test_without_clocks_rows_end_after_the_first_steps_and_fixes_go_on(tmp_path):
    with fixed(tmp_path, "amp=bf16", clocks=False) as run:
        dtypes = train(20)
        assert run.observer.core.log.off
    assert set(dtypes) == {torch.bfloat16}
    assert run.fixes()["amp"]["state"] == "applied"
    assert 3 <= read_table(tmp_path / "rows.npy").size < 12


def test_with_clocks_every_step_is_a_row(tmp_path):
    with fixed(tmp_path, "amp=bf16") as run:
        train(20)
        assert not run.observer.core.log.off
    assert read_table(tmp_path / "rows.npy").size >= 20


def test_layers_computed_anew_in_backward_are_no_roots_without_clocks(tmp_path):
    seen = []
    with fixed(tmp_path, clocks=False) as run:
        run.observer.seams.root_called(
            lambda call, module, *args: (seen.append(module), call(module, *args))[1]
        )
        inner = nn.Linear(4, 4)
        model = nn.Sequential(inner, nn.ReLU())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inner(torch.ones(2, 4))  # so that its class is known as a root's
        for _ in range(12):
            hidden = torch.utils.checkpoint.checkpoint(
                lambda x: model(x), torch.ones(2, 4), use_reentrant=False
            )
            hidden.sum().backward()
            optimizer.step()
    assert run.observer.core.log.off
    assert sum(module is model for module in seen) == 12
    assert seen.count(inner) == 1
