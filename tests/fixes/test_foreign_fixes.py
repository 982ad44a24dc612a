"""Fixes of other packages, named by entry points."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from stepscope.cli.fixes import fixes
from stepscope.fixes import registry
from stepscope.fixes.applicability import ObservedProgram
from stepscope.fixes.registry import all_fixes, find_fix, fix_named, in_order, parse_fixes
from stepscope.record.errors import UsageError
from stepscope.tune.search.candidates import find_candidates

SOURCE = Path(__file__).resolve().parents[2] / "src"
PLUGINS = Path(__file__).resolve().parents[1] / "plugins"
PROGRAM = """\
import torch

torch.autograd.set_detect_anomaly(True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
print("anomalies are detected:", torch.is_anomaly_enabled())
"""
BROKEN = {
    "not_there": "stepscope_example.nothing:FIX",
    "another": "stepscope_example.fix:FIX",
    "pin": "stepscope_example.fix:FIX",
}


@pytest.fixture
def plugins(monkeypatch):
    """The example package as if it were installed."""
    monkeypatch.syspath_prepend(str(PLUGINS))


@pytest.fixture
def broken(plugins, tmp_path, monkeypatch):
    """And a package that names what it does not have."""
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in BROKEN.items()]
    (about / "entry_points.txt").write_text("\n".join(["[stepscope.fixes]", *lines, ""]))
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._complain.cache_clear()


def test_a_fix_of_another_package_is_one_among_all(plugins):
    names = [one.name for one in all_fixes()]
    assert names[names.index("nosync") + 1] == "anomaly_off"
    assert fix_named("anomaly_off").title.startswith("turn autograd's")
    shown = CliRunner().invoke(fixes)
    assert "anomaly_off" in shown.output
    told = json.loads(CliRunner().invoke(fixes, ["anomaly_off", "--json"]).output)
    assert (told["group"], told["kind"], told["suggested"]) == ("waiting", "exact", [])


def test_it_has_its_place_in_the_order_and_its_name_is_suggested(plugins):
    assert in_order(["amp=bf16", "anomaly_off", "pin"]) == ("pin", "anomaly_off", "amp=bf16")
    assert [one.name for one, _ in parse_fixes(["tf32", "anomaly_off"])] == ["anomaly_off", "tf32"]
    with pytest.raises(UsageError, match="did you mean anomaly_off"):
        fix_named("anomalies_off")
    with pytest.raises(UsageError, match="--fix anomaly_off takes no value"):
        parse_fixes(["anomaly_off=1"])


def test_a_search_tries_it_where_a_finding_names_it(plugins):
    finding = {
        "id": "python.anomaly", "kind": "exact", "also": [],
        "fix": {"name": "anomaly_off", "value": None},
    }  # fmt: skip
    for findings, tried in (([finding], True), ([], False)):
        program = ObservedProgram({"run": {"device": "cpu"}, "findings": findings})
        found, _ = find_candidates(program)
        assert ("anomaly_off" in [one.fix for one in found]) == tried


def test_what_cannot_be_loaded_is_said_in_one_line_and_left_out(broken, capsys):
    names = [one.name for one in all_fixes()]
    assert "anomaly_off" in names
    assert not {"not_there", "another"} & set(names)
    assert fix_named("pin").kind == "exact"
    all_fixes()
    lines = sorted(capsys.readouterr().err.splitlines())
    assert [line.partition(": ")[2].partition(" of ")[0] for line in lines] == [
        "fix another",
        "fix not_there",
        "fix pin",
    ]
    assert "stepscope_example.fix:FIX is not a Fix named another" in lines[0]
    assert "No module named 'stepscope_example.nothing'" in lines[1]
    assert "there is a fix of that name already" in lines[2]
    with pytest.raises(UsageError, match="fix not_there of broken cannot be loaded"):
        parse_fixes(["not_there"])


def test_without_such_packages_nothing_is_looked_for(monkeypatch):
    monkeypatch.setattr(registry, "_entry_points", lambda: pytest.fail("looked for entry points"))
    assert [one.name for one, _ in parse_fixes(["pin", "workers=2"])] == ["workers", "pin"]
    assert find_fix("amp") is not None


def test_it_takes_effect_in_a_program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    path = os.pathsep.join([str(SOURCE), str(PLUGINS)])
    env = kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    stepscope = [sys.executable, "-m", "stepscope.cli.main"]
    command = [*stepscope, "run", "--no-window", "--out", "run", "--fix", "anomaly_off"]
    ended = subprocess.run(
        [*command, "program.py"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "anomalies are detected: False\n"), ended.stderr
    shown = subprocess.run(
        [*stepscope, "show", "run", "--json"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    (fix,) = json.loads(shown.stdout)["fixes"]
    assert (fix["name"], fix["state"], fix["kind"]) == ("anomaly_off", "applied", "exact")
