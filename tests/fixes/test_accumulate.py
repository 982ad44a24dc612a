"""Several batches for each step of the optimizer."""

import pytest
import torch
from fixing import fixed
from torch import nn

from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError

DATA = torch.randn(8, 4, 6, generator=torch.Generator().manual_seed(0))


def loss_of(model, x):
    return model(x).square().mean()


def by_hand(size, clip=None, momentum=0.9):
    """What the edited program would do: gradients averaged over groups of batches."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    for begin in range(0, len(DATA) - size + 1, size):
        optimizer.zero_grad()
        for x in DATA[begin : begin + size]:
            (loss_of(model, x) / size).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model.weight.detach()


def unedited(after=False, clip=None, zero_model=False, scaler=None):
    """A plain loop, one step per batch; `after`: gradients are zeroed after the step."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    zero = model.zero_grad if zero_model else optimizer.zero_grad
    losses = []
    for x in DATA:
        if not after:
            zero()
        loss = loss_of(model, x)
        losses.append(loss.item())
        if scaler:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        else:
            loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        if after:
            zero()
    return model.weight.detach(), losses


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("zero_model", [False, True])
def test_training_is_that_of_averaged_gradients(tmp_path, size, after, zero_model):
    with fixed(tmp_path, f"accumulate={size}") as run:
        weight, losses = unedited(after=after, zero_model=zero_model)
    torch.testing.assert_close(weight, by_hand(size))
    torch.manual_seed(0)
    fresh = nn.Linear(6, 3)
    assert losses[:size] == [loss_of(fresh, x).item() for x in DATA[:size]]  # not divided
    told = run.fixes()["accumulate"]
    assert told["state"] == "applied"
    assert told["kind"] == "semantic"
    assert f"once in {size}" in told["where"][0]
    assert run.observer.core.steps == 8 // size


def test_gradients_are_clipped_once_per_group(tmp_path):
    with fixed(tmp_path, "accumulate=4"):
        weight, _ = unedited(clip=0.05)
    torch.testing.assert_close(weight, by_hand(4, clip=0.05))


def test_a_norm_is_still_told_while_gathering(tmp_path):
    with fixed(tmp_path, "accumulate=2"):
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of(model, DATA[0]).backward()
        before = model.weight.grad.clone()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3, norm_type=2)
        nn.utils.clip_grad_value_(model.parameters(), 1e-9)
        assert norm > 0
        assert torch.equal(model.weight.grad, before)
        optimizer.step()


def test_a_grad_scaler_waits_for_the_end_of_a_group(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    with fixed(tmp_path, "accumulate=4") as run:
        weight, _ = unedited(clip=0.05, scaler=scaler)
    torch.testing.assert_close(weight, by_hand(4, clip=0.05), rtol=1e-4, atol=1e-6)
    assert scaler.get_scale() == 4096  # it grew twice, not eight times
    assert run.observer.core.steps == 2
    assert run.fixes()["accumulate"]["state"] == "applied"


def test_infinite_gradients_do_not_hold_up_the_groups(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    with fixed(tmp_path, "accumulate=2") as run:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model.weight.detach().clone()
        for number in range(4):
            optimizer.zero_grad()
            bad = 1e38 if number < 2 else 1e-12
            scaler.scale(loss_of(model, DATA[number]) * bad).backward()
            scaler.step(optimizer)
            scaler.update()
            if number == 1:
                assert torch.equal(model.weight, before)
        assert not model.weight.grad.isinf().any()
    assert run.observer.core.steps == 2


def test_a_closure_is_called_for_every_batch(tmp_path):
    with fixed(tmp_path, "accumulate=4"):
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for x in DATA:

            def closure(x=x):
                optimizer.zero_grad()
                loss = loss_of(model, x)
                loss.backward()
                return loss

            assert optimizer.step(closure) is not None
    torch.testing.assert_close(model.weight.detach(), by_hand(4))


def test_the_programs_own_accumulation_multiplies(tmp_path):
    with fixed(tmp_path, "accumulate=2"):
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for number, x in enumerate(DATA):
            (loss_of(model, x) / 2).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    torch.testing.assert_close(model.weight.detach(), by_hand(4))


def test_a_group_goes_on_in_the_next_epoch_and_schedulers_go_on_with_every_batch(tmp_path):
    with fixed(tmp_path, "accumulate=2") as run:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for _ in range(2):
            for x in DATA[:3]:
                optimizer.zero_grad()
                loss_of(model, x).backward()
                optimizer.step()
                scheduler.step()
    assert run.observer.core.steps == 3
    assert optimizer.param_groups[0]["lr"] == 0.5**6


def test_two_optimizers_are_left_alone(tmp_path):
    with fixed(tmp_path, "accumulate=2") as run:
        one, other = nn.Linear(6, 6), nn.Linear(6, 3)
        first = torch.optim.SGD(one.parameters(), lr=0.1)
        second = torch.optim.SGD(other.parameters(), lr=0.1)
        for x in DATA:
            first.zero_grad()
            second.zero_grad()
            loss_of(other, one(x)).backward()
            first.step()
            second.step()
    told = run.fixes()["accumulate"]
    assert told["state"] == "not applicable"
    assert "several optimizers" in told["reasons"][0]
    assert run.observer.core.steps == 8


def test_lbfgs_is_left_alone(tmp_path):
    with fixed(tmp_path, "accumulate=2") as run:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, DATA[0])
            loss.backward()
            return loss

        optimizer.step(closure)
    assert "LBFGS" in run.fixes()["accumulate"]["reasons"][0]


def test_a_program_that_clears_gradients_by_itself_is_told_so(tmp_path):
    with fixed(tmp_path, "accumulate=4") as run:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in DATA:
            for parameter in model.parameters():
                parameter.grad = None
            loss_of(model, x).backward()
            optimizer.step()
    assert "clears gradients without zero_grad" in run.fixes()["accumulate"]["reasons"][0]
    assert run.observer.core.steps == 7  # all but the first batch


def test_several_losses_and_given_gradients_are_divided(tmp_path):
    with fixed(tmp_path, "accumulate=4"):
        w = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([w], lr=1.0)
        torch.autograd.backward([w.sum(), (2 * w).sum()])
        assert w.grad.tolist() == [0.75, 0.75]
        (3 * w).backward(torch.tensor([4.0, 8.0]))
        assert w.grad.tolist() == [3.75, 6.75]
        with pytest.raises(RuntimeError, match="scalar outputs"):
            (3 * w).backward()
        optimizer.step()


def test_lightning_trains_with_it(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def training_step(self, batch, _):
            return self.layer(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    with fixed(tmp_path / "run", "accumulate=4") as run:
        torch.manual_seed(0)
        net = Net()
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            gradient_clip_val=0.05,
        )
        trainer.fit(net, torch.utils.data.DataLoader(DATA, batch_size=None))
    torch.testing.assert_close(net.layer.weight.detach(), by_hand(4, clip=0.05))
    assert run.observer.core.steps == 2


def test_its_edit_and_its_values():
    assert "divide the loss by 4" in fix_named("accumulate").edit(4, "").words
    assert fix_named("accumulate").parse("4") == 4
    for bad in (None, "1", "0", "many"):
        with pytest.raises(UsageError):
            fix_named("accumulate").parse(bad)
