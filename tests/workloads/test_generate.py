"""The generating program tells the first token from the others, and writes what the model says."""

import json

import pytest
import torch

from stepscope.workloads.catalogue import find_workload
from stepscope.workloads.generate import generate, one_generation
from stepscope.workloads.measure.clock import HostClock
from stepscope.workloads.measure.program import run_program
from stepscope.workloads.models.build import build_model


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def measured(folder, *arguments):
    path = folder / "measured.json"
    given = ["--model", "gpt:tiny", "--device", "cpu", *arguments, "--measure", str(path)]
    assert run_program("generate", "", generate, given) == 0
    return json.loads(path.read_text())


def test_first_tokens_and_further_ones_are_timed_apart(tmp_path):
    given = ("--batch", "2", "--prompt", "8", "--new-tokens", "5", "--seconds", "0.1")
    found = measured(tmp_path, *given)
    assert (found["mode"], found["error"]) == ("generate", None)
    assert (found["prompt"], found["new_tokens"], found["tokens_per_sample"]) == (8, 5, 5)
    assert found["calls"] >= 3
    assert found["samples"] == 2 * found["calls"]
    counts = [len(found[name]) for name in ("series_ms", "first_token_ms", "token_ms")]
    assert counts == [found["calls"]] * 3
    for whole, first, token in zip(
        *(found[name] for name in ("series_ms", "first_token_ms", "token_ms")), strict=True
    ):
        assert min(first, token) > 0
        assert first + 4 * token <= whole  # which may be interrupted in between
    assert found["tokens_per_s"] == pytest.approx(5 * found["samples"] / found["elapsed_s"])
    assert found["flops_per_sample"] > 0


def test_a_single_token_has_no_further_ones(tmp_path):
    given = ("--batch", "1", "--prompt", "4", "--new-tokens", "1", "--steps", "3")
    found = measured(tmp_path, *given)
    assert found["token_ms"] == []
    assert found["calls"] == len(found["first_token_ms"]) == 3


def test_tokens_are_those_of_the_whole_sequence_computed_anew():
    torch.manual_seed(0)
    model = build_model(find_workload("gpt:tiny")).model.eval()
    prompts = torch.randint(256, (2, 6))
    cache = model.generate_cache(2, 11)
    for _ in range(2):
        found = one_generation(model, prompts, cache, 5, HostClock())
    sequence = prompts
    with torch.no_grad():
        for _ in range(5):
            likeliest = model(sequence)[:, -1].argmax(-1, keepdim=True)
            sequence = torch.cat([sequence, likeliest], dim=1)
    assert torch.equal(found, sequence[:, 6:])


def test_a_model_that_cannot_generate_is_refused_with_those_that_can(capsys):
    assert run_program("generate", "", generate, ["--model", "lstm", "--device", "cpu"]) == 2
    told = capsys.readouterr().err
    assert "gpt:tiny" in told
    assert told.count("\n") == 1


def test_people_are_told_the_rate(capsys):
    given = ["--model", "gpt:tiny", "--batch", "1", "--new-tokens", "2", "--steps", "1"]
    assert run_program("generate", "", generate, [*given, "--device", "cpu"]) == 0
    assert capsys.readouterr().out.endswith(" tokens/s\n")
