"""What a trial keeps for a proof."""

import json

import numpy as np
import pytest
import torch
from seeded import trial

from stepscope.probe.proof.recorder import squared_gradient_norm, tensors_in, top1_of, values_of
from stepscope.record.facts import OutputsFact, ProofFact

TRAINS = """
    import torch

    torch.manual_seed(1)
    model = torch.nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for step in range(60):
        loss = model(torch.randn(4, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if step < 3:
            norms = [p.grad.double().norm() for p in model.parameters()]
            print(torch.stack(norms).norm().item())
        optimizer.step()
        schedule.step()
        if step == 4:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "c.pt")
        if step == 9:
            state = torch.load("c.pt")
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
"""


def test_a_training_program_leaves_norms_rates_and_loads(tmp_path):
    found = trial(tmp_path / "run", TRAINS, seed=0, proof=True)
    printed = [float(line) for line in found.out.split()]
    assert found.proof["grad_norms"] == pytest.approx(printed, rel=1e-6)
    rates = found.proof["rates"]
    assert rates[:6] == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]
    assert rates[10] == rates[5]  # loaded with the optimizer
    assert len(rates) == len(found.losses) == 60
    assert found.proof["loads"] == [10]
    assert len(found.facts.all(ProofFact)) == 2  # written at step 50 too
    assert not (found.folder / "outputs.npz").exists()


def test_nothing_is_kept_unless_asked_for_and_losses_are_the_same(tmp_path):
    plain = trial(tmp_path / "plain", TRAINS, seed=0)
    kept = trial(tmp_path / "kept", TRAINS, seed=0, proof=True)
    assert plain.facts.all(ProofFact) == []
    assert plain.losses == kept.losses


def test_gradients_computed_in_a_closure_are_taken_after_it(tmp_path):
    found = trial(
        tmp_path / "run",
        """
        import torch

        torch.manual_seed(1)
        model = torch.nn.Linear(6, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))

        def closure():
            optimizer.zero_grad()
            loss = model(torch.randn(4, 6)).square().mean()
            loss.backward()
            print(torch.stack([p.grad.norm() for p in model.parameters()]).norm().item())
            return loss

        for _ in range(4):
            optimizer.step(closure)
        """,
        seed=0,
        proof=True,
    )
    printed = [float(line) for line in found.out.split()]
    assert found.proof["grad_norms"] == pytest.approx(printed[:3], rel=1e-6)
    assert found.proof["rates"] == pytest.approx([0.1] * 4, rel=1e-6)


SCALED = """
    import torch

    torch.manual_seed(1)
    model = torch.nn.Linear(6, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1{fused})
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for step in range(3):
        loss = model(torch.randn(4, 6)).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        {unscale}
        scaler.step(optimizer)
        scaler.update()
        print(loss.item())
"""


def test_norms_and_losses_do_not_carry_the_scale_of_a_grad_scaler(tmp_path):
    kinds = [("", "scaler.unscale_(optimizer)"), (", fused=True", "")]
    runs = [
        trial(tmp_path / str(n), SCALED.format(fused=fused, unscale=text), seed=0, proof=True)
        for n, (fused, text) in enumerate(kinds)
    ]
    first = runs[0]
    assert first.proof["grad_norms"][0] < 10
    for run in runs:
        assert run.losses == [float(line) for line in run.out.split()]
        assert run.proof["grad_norms"] == pytest.approx(first.proof["grad_norms"], rel=1e-4)


def test_losses_under_the_fix_amp_in_fp16_are_those_the_program_sees(tmp_path):
    program = SCALED.replace('"cpu", init_scale=64.0', '"cpu", enabled=False')
    source = program.format(fused="", unscale="")
    base = trial(tmp_path / "base", source, seed=0, proof=True)
    found = trial(tmp_path / "run", source, seed=0, proof=True, fixes=("amp=fp16",))
    assert found.losses == [float(line) for line in found.out.split()]
    assert found.losses != base.losses
    assert found.proof["grad_norms"] == pytest.approx(base.proof["grad_norms"], rel=0.01)


def test_a_step_left_out_for_overflow_has_no_norm_and_no_rate(tmp_path):
    source = SCALED.replace("        optimizer.zero_grad()\n", "", 1)
    source = source.replace(
        "        {unscale}\n", "        if step == 1: model.weight.grad.fill_(torch.inf)\n"
    ).replace("        print", "        optimizer.zero_grad()\n        print")
    found = trial(tmp_path / "run", source.format(fused="", unscale=""), seed=0, proof=True)
    assert [norm is None for norm in found.proof["grad_norms"]] == [False, True, False]
    assert found.proof["rates"] == [0.1, None, 0.1]


INFERS = """
    import torch

    torch.manual_seed(1)
    model = torch.nn.Linear(8, 1000).eval()
    with torch.inference_mode():
        for step in range(25):
            outputs = model(torch.randn(16, 8))
            print(outputs.argmax(-1).tolist())
"""


def test_an_inference_program_leaves_values_and_top_1_of_its_first_outputs(tmp_path):
    found = trial(tmp_path / "run", INFERS, seed=0, proof=True)
    with np.load(found.folder / "outputs.npz", allow_pickle=False) as kept:
        assert sorted(kept) == sorted(
            f"{kind}_{n}" for kind in ("values", "top1") for n in range(20)
        )
        printed = [json.loads(line) for line in found.out.splitlines()]
        assert [kept[f"top1_{n}"].tolist() for n in range(20)] == printed[:20]
        values = kept["values_0"]
    assert values.shape == (4096,)
    assert values.dtype == np.float32
    assert found.facts.all(OutputsFact) == [OutputsFact(file="outputs.npz", calls=20)]
    assert found.proof["grad_norms"] == []


def test_a_norm_has_every_optimizer_that_stepped_since_the_step_before(tmp_path):
    found = trial(
        tmp_path / "run",
        """
        import torch

        torch.manual_seed(1)
        one, two = torch.nn.Linear(6, 6), torch.nn.Linear(6, 2)
        model = torch.nn.Sequential(one, two)
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (one, two)]
        for step in range(3):
            loss = model(torch.randn(4, 6)).square().mean()
            model.zero_grad()
            loss.backward()
            for part, optimizer in zip((one, two), optimizers):
                print(sum(p.grad.square().sum().item() for p in part.parameters()))
                optimizer.step()
        """,
        seed=0,
        proof=True,
    )
    printed = [float(line) for line in found.out.split()]
    squares = [printed[0], printed[1] + printed[2], printed[3] + printed[4]]
    assert [norm**2 for norm in found.proof["grad_norms"]] == pytest.approx(squares, rel=1e-5)


def test_norms_take_sparse_half_and_complex_gradients():
    parameters = [torch.nn.Parameter(torch.zeros(4, 2)) for _ in range(2)]
    parameters.append(torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16)))
    parameters.append(torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64)))
    parameters.append(torch.nn.Parameter(torch.zeros(9)))  # has none
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    assert squared_gradient_norm(optimizer) is None
    indices = torch.tensor([[0, 0], [1, 1]])
    parameters[0].grad = torch.sparse_coo_tensor(
        indices, torch.tensor([1.0, 2.0]), (4, 2), check_invariants=True
    )
    parameters[1].grad = torch.full((4, 2), 2.0)
    parameters[2].grad = torch.ones(3, dtype=torch.bfloat16)
    parameters[3].grad = torch.tensor([3 + 4j, 0])
    assert squared_gradient_norm(optimizer).item() == pytest.approx(9 + 8 * 4 + 3 + 25)
    optimizer.grad_scale = torch.tensor(2.0)
    assert squared_gradient_norm(optimizer).item() == pytest.approx((9 + 8 * 4 + 3 + 25) / 4)


def test_outputs_are_found_in_nested_results_and_evenly_taken():
    first, second = torch.zeros(2), torch.ones(3)
    assert [*tensors_in({"a": [first, None], "b": (second, "text")})] == [first, second]
    values = values_of(torch.arange(8192.0))
    assert values.tolist() == list(range(0, 8192, 2))
    assert top1_of(torch.eye(3)).tolist() == [0, 1, 2]
    assert top1_of(torch.zeros(5)) is None
