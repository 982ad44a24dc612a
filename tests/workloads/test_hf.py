"""Models of transformers, from small configurations."""

import json

import pytest
import torch

from stepscope.record.errors import UsageError
from stepscope.workloads.catalogue import Workload, find_workload
from stepscope.workloads.models.build import build_model


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Layers this small only wait for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def refused(workload, **options):
    with pytest.raises(UsageError) as caught:
        build_model(workload, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


@torch.no_grad()
def generated(model, tokens, start, **options):
    logits, cache = model.prefill(tokens[:, :start], **options)
    found = [logits]
    for place in range(start, tokens.shape[1]):
        found.append(model.decode(tokens[:, place : place + 1], cache))
    return torch.stack(found, dim=1), cache


GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
BERT = {
    "model_type": "bert",
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}


@pytest.fixture
def hf(tmp_path):
    pytest.importorskip("transformers")

    def folder(config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return find_workload(f"hf:{tmp_path}")

    return folder


def test_a_transformers_decoder_generates_from_a_cache(hf):
    torch.manual_seed(0)
    special = {"bos_token_id": 1, "eos_token_id": 1}
    workload = hf(GPT2 | special | {"vocab_size": 50})
    built = build_model(workload, length=16)
    model, tokens = built.model.eval(), torch.randint(0, 50, (2, 8))
    with torch.no_grad():
        whole = model(tokens)
    assert whole.shape == (2, 8, 50)
    found, cache = generated(model, tokens, 3, length=16)
    torch.testing.assert_close(found, whole[:, 2:], rtol=1e-4, atol=1e-5)
    again, _ = generated(model, tokens, 3, cache=cache)
    torch.testing.assert_close(again, found, rtol=1e-4, atol=1e-5)
    assert "--length 65 is more than its 64 positions" in refused(workload, length=65)


def test_a_transformers_encoder_classifies(hf):
    built = build_model(hf(BERT), classes=4)
    assert built.model.training
    assert built.model(torch.randint(0, 1000, (2, 8))).shape == (2, 4)


def test_what_transformers_cannot_build_is_said_in_one_line(hf):
    assert "transformers could not build it" in refused(hf(BERT | {"num_attention_heads": 5}))


def test_our_decoder_is_gpt2(hf):
    """The same weights give the same logits; the library keeps its matrices transposed."""
    torch.manual_seed(0)
    special = {"bos_token_id": 1, "eos_token_id": 1}
    theirs = build_model(hf(GPT2 | special | {"vocab_size": 50}), length=16).model.eval()
    options = {"layers": 2, "width": 32, "heads": 2, "positions": 64}
    workload = Workload(
        "gpt", "", "language", find_workload("gpt").make, options, vocabulary=50, length=16
    )
    ours = build_model(workload).model.eval()
    weights = {
        key.removeprefix("model.transformer.")
        .replace("mlp.c_fc", "mlp.0")
        .replace("mlp.c_proj", "mlp.2"): value
        for key, value in theirs.state_dict().items()
    }
    for key, value in weights.items():
        if key.startswith("h.") and value.dim() == 2:
            weights[key] = value.T
    weights["lm_head.weight"] = weights.pop("model.lm_head.weight")
    ours.load_state_dict(weights)
    tokens = torch.randint(0, 50, (2, 12))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens), rtol=1e-4, atol=1e-5)
