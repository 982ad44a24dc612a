"""All that is known of a fix stands in its own module: a new one is that module and one line."""

import ast
from collections.abc import Iterator

from modules import modules

from stepscope.fixes.registry import FIX_NAMES

ALLOWED = {
    # Settings of a grid of loaders, which have the same names.
    ("bench.loader_grid", "('workers', 'pin', 'prefetch')"),
    ("bench.loader_grid", "('batch', 'workers', 'pin', 'prefetch')"),
    (
        "bench.loader_grid",
        "{'workers': setting.workers, 'pin': 'on' if setting.pin else 'off'}",
    ),
    # `stepscope batch` chooses the batch size itself.
    ("cli.batch", "fix.partition('=')[0] == 'batch'"),
}
THEIR_OWN = ("fixes.", "diagnose.rules.")
"""Rooms that may: fixes, and rules, which choose among their own fixes."""


def test_no_other_module_has_a_table_of_fixes():
    found = {
        (name, ast.unparse(node))
        for module in modules().values()
        if not (name := module.name.removeprefix("stepscope.")).startswith(THEIR_OWN)
        for node in tables_of_fixes(module.tree)
    }
    assert sorted(found - ALLOWED) == [], "let the fix say so itself: see fixes/base.py"


def test_the_registry_names_each_fix_once():
    source = modules()["stepscope.fixes.registry"].path.read_text()
    assert all(source.count(f'"{name}": "stepscope.fixes.') == 1 for name in FIX_NAMES)


def test_tables_are_seen():
    for text in (
        "x = {'amp': 1, 'sdpa': 2}",
        "x = name in ('workers', 'persistent')",
        "x = {'compile'}",
        "if fix.name == 'amp': pass",
        "x = name != 'workers'",
        "x = dict.fromkeys(('tf32', 'threads'))",
        "x = fix.partition('=')[0] == 'batch'",
    ):
        assert list(tables_of_fixes(ast.parse(text))), text
    for text in (
        "x = {'compile': 1, 'warmup': 2}",
        "x = FixRef('amp', 'bf16')",
        "x = (fix_named('pin'), 'x')",
        "x = row['batch'] == 'cache'",
    ):
        assert not list(tables_of_fixes(ast.parse(text))), text


def tables_of_fixes(tree: ast.AST) -> Iterator[ast.expr]:
    """Displays whose keys or members all are names of fixes, and branches on a fix's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            if node.keys and all(_is_fix(key) for key in node.keys):
                yield node
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            few = isinstance(node, ast.Set) or len(node.elts) > 1
            if few and node.elts and all(_is_fix(one) for one in node.elts):
                yield node
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            sides = (node.left, node.comparators[0])
            if any(map(_is_fix, sides)) and any(map(_is_name, sides)):
                yield node


def _is_fix(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value in FIX_NAMES


def _is_name(node: ast.expr) -> bool:
    """`name`, `….name` or what stands before the `=` of `….partition("=")[0]`."""
    if isinstance(node, ast.Subscript):
        return ast.unparse(node).endswith((".partition('=')[0]", ".split('=')[0]"))
    return (isinstance(node, ast.Name) and node.id in ("name", "fix")) or (
        isinstance(node, ast.Attribute) and node.attr in ("name", "fix")
    )
