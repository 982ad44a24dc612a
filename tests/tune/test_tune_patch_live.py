"""From a real run with fixes to a patched program that does the same."""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent, indent

import pytest
from patching import calls_apply
from seeded import Seeded, plain, trial

from stepscope.measure.source_diff import apply_diff
from stepscope.record.fix import fix_outcomes
from stepscope.store.source import save_sources
from stepscope.tune.document import TunedPatch
from stepscope.tune.patch import write_patch

PROGRAM = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset


    def epoch(net, loader, optimizer, criterion):
        for inputs, targets in loader:
            outputs = net(inputs)
            loss = criterion(outputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item())


    def main():
        torch.manual_seed(1)
        data = TensorDataset(torch.randn(40, 3, 8, 8), torch.randint(0, 4, (40,)))
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=0.01,
        )
        loader = DataLoader(data, batch_size=8, shuffle=True)
        for _ in range(2):
            epoch(model, loader, optimizer, nn.CrossEntropyLoss())


    if __name__ == "__main__":
        main()
"""
FIXES = ("workers=1", "fused_optimizer", "channels_last", "threads=1", "amp=bf16")


def patch_of(tmp_path: Path, program: str, *fixes: str) -> tuple[Seeded, Seeded, TunedPatch]:
    """A run without fixes, one with them, and the patch that is made from both."""
    started = (datetime.now(UTC) + timedelta(seconds=1)).isoformat(timespec="seconds")
    scout = trial(tmp_path / "scout", program)
    save_sources(scout.folder, started)
    fixed = trial(tmp_path / "fixed", program, seed=0, fixes=fixes)
    seen = {"run": {"folder": str(scout.folder), "program": "program.py", "started": started}}
    outcomes = fix_outcomes(fixed.facts.fixes)
    return scout, fixed, write_patch(scout.folder, fixes, outcomes, seen)


def test_a_patched_program_computes_what_the_fixes_do(tmp_path):
    scout, fixed, patch = patch_of(tmp_path, PROGRAM, *FIXES)
    assert patch.by_hand == ()
    assert not calls_apply(patch)
    assert {edit.fix for edit in patch.edits} == {text.split("=")[0] for text in FIXES}
    apply_diff(scout.folder, patch.text or "")
    after = (scout.folder / "program.py").read_text()
    assert "        fused=True,\n    )" in after
    assert "shuffle=True, num_workers=1)" in after
    printed = plain(tmp_path / "patched", after)
    assert [float(line) for line in printed.split()] == fixed.losses


def test_fixes_that_no_line_expresses_are_in_the_patch_too(tmp_path):
    fixes = ("accumulate=2", "amp=bf16", "channels_last")
    weight = "print(sum(one.double().sum().item() for one in net.parameters()))"
    text = PROGRAM.replace("print(loss.item())", weight)
    scout, fixed, patch = patch_of(tmp_path, text, *fixes)
    assert patch.by_hand == ()
    assert calls_apply(patch).keys() == {"accumulate"}
    (scout.folder / "stepscope.patch").write_text(patch.text or "")
    git = ["git", "apply", "stepscope.patch"]
    subprocess.run(git, cwd=scout.folder, check=True, capture_output=True)
    after = (scout.folder / "program.py").read_text()
    assert 'import stepscope\n\nstepscope.apply("accumulate=2")\n' in after
    assert plain(tmp_path / "patched", after) == fixed.out


WRITTEN = {
    "a partial": """
        make = functools.partial(DataLoader, batch_size=2, num_workers=0)
        loader = make(data)
    """,
    "a partial of the dataset": """
        make = functools.partial(DataLoader, data, num_workers=0)
        loader = make(batch_size=2)
    """,
    "a partial called at once": """
        loader = functools.partial(DataLoader, batch_size=2)(data, shuffle=True)
    """,
    "a partial kept in an object": """
        made = types.SimpleNamespace()
        made.loader = functools.partial(torch.utils.data.DataLoader, batch_size=2)
        loader = made.loader(
            data,
        )
    """,
    "a factory": """
        def make_loader(dataset, **others):
            return DataLoader(dataset, batch_size=2, **others)

        loader = make_loader(data, num_workers=0, drop_last=False)
    """,
    "a factory with a parameter": """
        def make_loader(dataset, workers=0):
            return DataLoader(dataset, 2, num_workers=workers)

        loader = make_loader(data)
    """,
    "a lambda": """
        make = lambda dataset: DataLoader(dataset, batch_size=2)
        loader = make(data)
    """,
    "arguments of the command line": """
        args = argparse.Namespace(workers=0, batch=2)
        loader = DataLoader(data, batch_size=args.batch, num_workers=args.workers)
    """,
    "a dictionary's items": """
        cfg = {"workers": 0, "batch": 2}
        loader = DataLoader(data, cfg["batch"], num_workers=cfg["workers"])
    """,
    "a config object": """
        cfg = types.SimpleNamespace(loader={"batch_size": 2, "num_workers": 0})
        loader = DataLoader(data, **cfg.loader)
    """,
    "two config objects": """
        cfg = types.SimpleNamespace(batch_size=2, drop_last=False)
        loader = DataLoader(data, **vars(cfg), **{"num_workers": 0})
    """,
    "one of two classes": """
        Loader = DataLoader if len(data) else None
        loader = Loader(data, batch_size=2)
    """,
    "a subclass": """
        class Loader(DataLoader):
            def __init__(self, dataset, size):
                super().__init__(dataset, size, num_workers=0)

        loader = Loader(data, 2)
    """,
    "a tuple": """
        other, loader = DataLoader(data), DataLoader(data, batch_size=2)
    """,
}
CALLED = {
    "a partial that moves places": """
        make = functools.partial(DataLoader, data)
        loader = make(2, True)
    """,
    "a table": """
        makers = {"train": DataLoader}
        loader = makers["train"](data, batch_size=2)
    """,
    "what another function was given": """
        def make(cls):
            return cls(data, batch_size=2)

        loader = make(DataLoader)
    """,
}


@pytest.mark.parametrize("ways", [WRITTEN, CALLED], ids=["written", "called"])
def test_a_loader_has_its_settings_however_the_program_makes_it(tmp_path, ways):
    text = "import argparse\nimport functools\nimport types\n\nimport torch\n"
    text += "from torch.utils.data import DataLoader\n\ndata = torch.arange(5.0)\n"
    for number, way in enumerate(ways.values()):
        text += f"\n\ndef way{number}():\n{indent(dedent(way).strip(), '    ')}\n"
        text += "    found = len(list(loader))\n"
        text += "    print(loader.num_workers, loader.persistent_workers, found, flush=True)\n"
    text += "\n\nif __name__ == '__main__':\n"
    text += "".join(f"    way{number}()\n" for number in range(len(ways)))
    scout, fixed, patch = patch_of(tmp_path, text, "workers=1", "persistent", "drop_last")
    assert patch.by_hand == ()
    named = {"workers", "persistent", "drop_last"}
    assert calls_apply(patch).keys() == (named if ways is CALLED else set())
    apply_diff(scout.folder, patch.text or "")
    after = (scout.folder / "program.py").read_text()
    printed = plain(tmp_path / "patched", after)
    assert dict(zip(ways, printed.splitlines(), strict=True)) == dict.fromkeys(ways, "1 True 2")
    assert printed == fixed.out
