"""What a run promises can be had: the command it ends with applies every fix it names."""

import json
import re
import shlex

import pytest
import torch
from cases import case, idle_for_host, show
from fixing import fixed
from rulings import only
from test_cuda_graph import Stand
from test_fix_checks import Case, Plain, Recurrent
from test_run_with_fixes import execute

from stepscope.fixes.launching.cuda_graph import fix as graphing
from stepscope.fixes.registry import fix_named
from stepscope.hardware.process_tree import OtherLoad

GPT = """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = torch.matmul(q, k.transpose(1, 2)) / q.shape[-1] ** 0.5
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.out(torch.matmul(scores.masked_fill(mask, -1e9).softmax(-1), v))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        wide = 4 * width
        self.rest = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, x):
        x = x + self.attention(self.one(x))
        return x + self.rest(self.two(x))


class Gpt(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.table = nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.head = nn.Linear(width, 64)

    def forward(self, tokens):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(0)
model = Gpt()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(150):
    tokens = torch.randint(0, 64, (2, 17))
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("promised")
    (found / "gpt.py").write_text(GPT)
    return found


def shown(name, folder):
    said = execute(["show", name, "--json"], folder)
    assert said.exit_code == 0, said.stderr
    return json.loads(said.stdout)


def next_run(said):
    """The words of the command that applies fixes, after `stepscope`."""
    text = re.sub(r"\\\n\s*", "", said.stderr)
    found = re.search(r"stepscope (run --fix .*?gpt\.py)", text)
    assert found is not None, said.stderr
    return shlex.split(found[1])


@pytest.fixture
def quiet(monkeypatch):
    """No promise depends on who else uses the cores just now."""
    monkeypatch.setattr(OtherLoad, "sample", lambda *_: 0.0)


def test_the_next_command_applies_every_fix_it_names(folder, quiet):
    said = execute(["run", "--out", "bare", "gpt.py"], folder)
    document = shown("bare", folder)
    checks = {one["name"]: one for one in document["fix_checks"]}
    assert checks["sdpa"]["refused"]["reason"] == "written_by_hand"
    promised = [one["fix"]["name"] for one in document["findings"] if one["fix"]]
    assert "sdpa" not in promised
    words = next_run(said)
    assert "fused_optimizer" in words
    execute([*words[:1], "--out", "fixed", *words[1:]], folder)
    again = shown("fixed", folder)
    assert len(again["fixes"]) == words.count("--fix")
    assert {one["name"]: one["state"] for one in again["fixes"]} == {
        one["name"]: "applied" for one in again["fixes"]
    }
    effect = again["fix_effect"]
    assert effect["against"] == "bare"
    assert {*effect["fixes"]} <= {*words}
    kept = {one["name"] for one in again["findings"] if one.get("fix")}
    assert "fused_optimizer" not in kept


def test_no_graph_is_promised_to_an_lstm(tmp_path, monkeypatch):
    monkeypatch.setattr(graphing, "GraphRecorder", Stand)
    monkeypatch.setattr(fix_named("cuda_graph"), "needs", None)

    def promised(model):
        torch.manual_seed(0)
        with fixed(tmp_path / model.__name__, checks=True) as run:
            Case("", None, model=model).run()
        refused = run.checks()["cuda_graph"]
        record = None if refused is None else refused.to_json()
        checks = [{"name": "cuda_graph", "refused": record, "text": refused and refused.text}]
        given = case(show=show(fix_checks=checks), trace=idle_for_host(6.0), after=8.0)
        return only("launch.launch_bound", given)

    assert str(promised(Plain).fix) == "cuda_graph"
    one = promised(Recurrent)
    assert str(one.fix) == "compile=reduce-overhead"
    assert "recurrent" in one.refused[0].text
