"""The house: folders, layers, sizes, and what may cross from one room to another."""

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from modules import ROOT, cycles, imports, modules, statements, untyped

MOST_FILES = 420 + 4 + 6  # of `stepscope runs` and `python -m stepscope`, of ranks
MOST_IN_A_FOLDER = 20
ALLOWED = Path(__file__).with_name("untyped.txt")
UPDATE = "STEPSCOPE_UPDATE_UNTYPED"
"""Set it to write the allow-list anew, after functions were typed."""


def test_no_modules_import_each_other_in_a_circle():
    assert cycles() == []


def test_layers_import_only_those_below():
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_every_layer_is_in_the_contract():
    text = (ROOT / "pyproject.toml").read_text()
    for layer in {module.layer for module in modules().values()} - {""}:
        assert f"stepscope.{layer}" in text, f"{layer} is in no contract of import-linter"


def test_folders_are_rooms_not_corridors():
    folders = Counter(module.path.parent for module in modules().values())
    large = {str(path.relative_to(ROOT)): n for path, n in folders.items() if n > MOST_IN_A_FOLDER}
    assert large == {}


def test_there_are_not_too_many_files():
    assert len(modules()) <= MOST_FILES


def test_only_reports_and_commands_draw():
    drawing = {
        module.name
        for module in modules().values()
        for node in statements(module.tree)
        if _imports_rich(node) and module.layer not in ("report", "cli")
    }
    assert drawing == set()


def test_layers_speak_in_types():
    """What `untyped.txt` allows only shrinks: a function that was typed must leave it."""
    found = untyped()
    if os.environ.get(UPDATE):
        ALLOWED.write_text("".join(f"{one}\n" for one in sorted(found)))
    allowed = set(ALLOWED.read_text().split())
    assert sorted(found - allowed) == [], "give these a Struct instead of a dictionary of anything"
    assert sorted(allowed - found) == [], f"typed now: take them out, or run with {UPDATE}=1"


def test_the_imports_seen_are_those_there_are():
    assert len(imports()) > 1000


def _imports_rich(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] == "rich"
    return isinstance(node, ast.Import) and any(
        alias.name.partition(".")[0] == "rich" for alias in node.names
    )
