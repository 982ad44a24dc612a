"""From a real run with fixes to a patched program that does the same."""

from datetime import UTC, datetime, timedelta

from seeded import plain, trial

from stepscope.measure.source_diff import apply_diff
from stepscope.record.fix import fix_outcomes
from stepscope.store.source import save_sources
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


def test_a_patched_program_computes_what_the_fixes_do(tmp_path):
    started = (datetime.now(UTC) + timedelta(seconds=1)).isoformat(timespec="seconds")
    scout = trial(tmp_path / "scout", PROGRAM)
    save_sources(scout.folder, started)
    fixed = trial(tmp_path / "fixed", PROGRAM, seed=0, fixes=FIXES)
    applied = fix_outcomes(fixed.facts.fixes)
    seen = {"run": {"folder": str(scout.folder), "program": "program.py", "started": started}}
    patch = write_patch(scout.folder, FIXES, applied, seen)
    assert patch.by_hand == ()
    assert {edit.fix for edit in patch.edits} == {text.split("=")[0] for text in FIXES}
    apply_diff(scout.folder, patch.text or "")
    after = (scout.folder / "program.py").read_text()
    assert "        fused=True,\n    )" in after
    assert "shuffle=True, num_workers=1)" in after
    printed = plain(tmp_path / "patched", after)
    assert [float(line) for line in printed.split()] == fixed.losses
