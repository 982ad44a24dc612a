"""What a proof sees besides losses: real trials of one program, changed in ways that leave every
loss as it was."""

from collections.abc import Callable
from difflib import unified_diff
from typing import Any

import pytest
from msgspec.structs import replace

from stepscope.launch.program import Program
from stepscope.measure.runner import TrialRunner
from stepscope.measure.trial.final_state import read_final_state
from stepscope.measure.trial.host import host_named
from stepscope.measure.trial.record import Trial, TrialRequest
from stepscope.record.kinds import EndPart
from stepscope.record.proof import Proof
from stepscope.report.story.tune.words import proof_sentence
from stepscope.tune.proof.prove import prove

PROGRAM = """\
import datetime, os, random, sys, tempfile, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

begun = time.time()


class Numbers(Dataset):
    used = 0

    def __len__(self):
        return 64

    def __getitem__(self, i):
        Numbers.used += 1
        return torch.full((8,), i / 64), torch.tensor([i % 2.0])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.register_buffer("centre", torch.zeros(4))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        hidden = self.layers[0](x)
        if self.training:
            self.centre.lerp_(hidden.detach().mean(0), 0.1)
            self.seen += len(x)
        return self.layers(x)


def main():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(Numbers(), batch_size=8, shuffle=True)
    history = []
    for epoch in range(3):
        for x, y in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item())
            done = len(history)
            print(f"\\r{done}/24 |{'#' * done:24}| {done / (time.time() - begun):.2f}it/s", end="")
        print()
        print(f"epoch {epoch} loss {loss.item():.6f} {time.time() - begun:.2f}s", flush=True)
        torch.save({"model": model.state_dict(), "when": time.time()}, f"epoch{epoch}.pt")
    model.eval()
    right = sum(int(((model(x) > 0) == (y > 0.5)).sum()) for x, y in loader)
    print(f"evaluation: {right} of 64, mean {model(torch.ones(1, 8)).item():.6f}")
    print(f"samples used {Numbers.used}")
    print("mostly", "ones" if right > 32 else "zeros")
    print(f"finished at {datetime.datetime.now()}, {model.layers[0]!r} {object()!r}")
    print(f"elapsed {int(1e6 * (time.time() - begun))}", tempfile.mkdtemp(), os.getpid())
    print(int(1e9 * time.perf_counter()), f"{random.SystemRandom().random():.6f}")
    print(f"{id(model)} {model.seen.item()}", file=sys.stderr)
    np.savez("features.npz", centre=model.centre.numpy(), when=np.array(time.time()))
    np.save(f"run-{time.time_ns()}.npy", np.arange(3))


main()
"""
CHANGES = {
    "a buffer": ("hidden.detach().mean(0), 0.1)", "hidden.detach().mean(0), 0.2)"),
    "a counting buffer": ("self.seen += len(x)", "self.seen += 1"),
    "optimizer state": (
        "    model.eval()\n",
        "    for state in optimizer.state.values():\n"
        '        state["momentum_buffer"].zero_()\n'
        "    model.eval()\n",
    ),
    "a printed counter": ("Numbers.used += 1", "Numbers.used += 0"),
    "evaluation": ("model(torch.ones(1, 8))", "model(torch.zeros(1, 8))"),
    "a printed word": ('"mostly", "ones"', '"mainly", "ones"'),
    "a saved array": ("centre=model.centre.numpy()", "centre=model.centre.numpy() + 1"),
}
SEEN = {
    "a buffer": (EndPart.BUFFERS, "centre"),
    "a counting buffer": (EndPart.BUFFERS, "seen"),
    "optimizer state": (EndPart.OPTIMIZER, "layers.0.weight.momentum_buffer"),
    "a printed counter": (EndPart.OUTPUT, "samples used 0"),
    "a printed word": (EndPart.OUTPUT, "mainly zeros"),
    "a saved array": (EndPart.FILES, "features.npz"),
}
STEPS = 40  # the program ends by itself after 24
FIX = "pin"  # stands for the change
Prove = Callable[..., Proof]


def changed(name: str) -> str:
    before, after = CHANGES[name]
    assert PROGRAM.count(before) == 1
    lines = [text.splitlines(keepends=True) for text in (PROGRAM, PROGRAM.replace(before, after))]
    return "".join(unified_diff(*lines, "a/train.py", "b/train.py"))


QUICK = ("a buffer", "a printed counter")


@pytest.fixture(scope="module")
def prove_change(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Proves a change, or a fix, against trials of the program that are made once."""
    cwd = tmp_path_factory.mktemp("work")
    (cwd / "train.py").write_text(PROGRAM)
    folder = cwd / ".stepscope" / "tune-x"
    folder.mkdir(parents=True)
    program = Program("train.py", (), module=False)
    known: dict[int, list[Trial]] = {}
    with TrialRunner(program, folder, cwd, host_named(None)) as runner:
        runner._warm = True

        def run(request: TrialRequest, change: str | None = None) -> Trial:
            made = request
            if FIX in request.fixes:
                diff = changed(change) if change else None
                made = replace(request, fixes=(), patched=diff)
            trial = runner(made)
            assert trial.ok, trial.failure
            return replace(trial, request=request)

        def proven(change: str | None, *fixes: str, steps: int = STEPS) -> Proof:
            request = TrialRequest(steps=steps, proof=True)
            if steps not in known:
                known[steps] = [run(request), run(request)]
            return prove(
                lambda ask: run(ask, change),
                fixes or (FIX,),
                "exact",
                steps=steps,
                known=known[steps],
                final_states=lambda trial: read_final_state(runner.folder_of(trial.number)),
            )

        yield proven


@pytest.mark.parametrize(
    "change",
    [
        change if change in QUICK else pytest.param(change, marks=pytest.mark.slow)
        for change in SEEN
    ],
)
def test_what_leaves_the_losses_alone_is_seen_and_named(prove_change: Prove, change: str) -> None:
    proof = prove_change(change)
    assert (proof.state, proof.steps) == ("differs", 24)
    assert (proof.because.part, proof.because.detail) == SEEN[change]


@pytest.mark.slow
def test_an_evaluation_after_the_steps_is_seen(prove_change: Prove) -> None:
    proof = prove_change("evaluation")
    assert (proof.state, proof.because.part) == ("differs", EndPart.OUTPUT)
    assert proof.because.detail.startswith("evaluation: ")
    assert "it prints “evaluation: " in proof_sentence(proof)


@pytest.mark.slow
def test_a_buffer_is_seen_where_the_steps_are_cut_off(prove_change: Prove) -> None:
    proof = prove_change("a counting buffer", steps=12)
    assert (proof.state, proof.steps) == ("differs", 12)
    assert proof_sentence(proof) == "Results differ over 12 steps: buffer seen."


def test_times_addresses_bars_and_stamps_are_no_difference(prove_change: Prove) -> None:
    """The same program once more: three trials in all, no two of which print or save the same."""
    proof = prove_change(None)
    assert (proof.state, proof.because) == ("identical", None)
    assert proof.ends == tuple(EndPart)
    assert proof_sentence(proof) == (
        "Losses, weights, buffers, optimizer state, saved files and output are identical over 24"
        " steps."
    )


def test_a_dataset_that_counts_in_workers_is_seen(prove_change: Prove) -> None:
    proof = prove_change(None, "workers=2")
    assert (proof.state, proof.because.part) == ("differs", EndPart.OUTPUT)
    assert proof.because.detail == "samples used 0"
    assert proof.because.other == "samples used 256"
