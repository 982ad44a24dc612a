"""Watching imports without changing them."""

import importlib
import importlib.abc
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import stepscope
from stepscope.probe import patches as imports_module
from stepscope.probe.patches import ImportWatch


@pytest.fixture
def watch():
    watch = ImportWatch(0)
    yield watch
    watch.remove()


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes temporary modules, all forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(name, source=""):
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(source)
        importlib.invalidate_caches()
        return path

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_calls_back_once_the_module_is_whole(watch, write):
    write("sc_plain", "value = 1\nlast = 2\n")
    seen = []
    watch.when_imported("sc_plain", lambda module: seen.append(module.last))
    watch.install()
    assert seen == []
    module = importlib.import_module("sc_plain")
    importlib.import_module("sc_plain")
    assert seen == [2]
    assert module.value == 1


def test_tells_when_a_module_that_is_waited_for_begins_to_be_imported(watch, write):
    write("sc_other")
    write("sc_begun", "import sys\nseen_early = list(sys.sc_seen)\n")
    sys.sc_seen = []
    try:
        watch.when_imported("sc_begun", lambda _: sys.sc_seen.append("whole"))
        watch.before_import = sys.sc_seen.append
        watch.install()
        importlib.import_module("sc_other")
        assert importlib.import_module("sc_begun").seen_early == ["sc_begun"]
        assert sys.sc_seen == ["sc_begun", "whole"]
    finally:
        del sys.sc_seen


def test_calls_back_at_once_for_what_is_imported_already(watch, write):
    write("sc_there")
    module = importlib.import_module("sc_there")
    seen = []
    watch.when_imported("sc_there", seen.append)
    assert seen == [module]


def test_waits_for_a_module_that_is_being_imported(watch, write):
    write(
        "sc_partly",
        "import sys\nsys.sc_watch.when_imported('sc_partly', sys.sc_seen.append)\n"
        "seen_early = list(sys.sc_seen)\n",
    )
    sys.sc_watch, sys.sc_seen = watch, []
    try:
        watch.install()
        module = importlib.import_module("sc_partly")
        assert module.seen_early == []
        assert sys.sc_seen == [module]
    finally:
        del sys.sc_watch, sys.sc_seen


def test_several_callbacks_come_in_order(watch, write):
    write("sc_several")
    seen = []
    watch.when_imported("sc_several", lambda _: seen.append("first"))
    watch.when_imported("sc_several", lambda _: seen.append("second"))
    watch.install()
    importlib.import_module("sc_several")
    assert seen == ["first", "second"]


def test_a_module_imported_by_another_is_seen_too(watch, write):
    write("sc_inner", "value = 1\n")
    write("sc_outer", "import sc_inner\n")
    seen = []
    watch.when_imported("sc_inner", lambda module: seen.append(module.__name__))
    watch.install()
    importlib.import_module("sc_outer")
    assert seen == ["sc_inner"]


def test_a_submodule_is_seen(watch, write):
    write("sc_package.__init__")
    write("sc_package.part", "value = 3\n")
    seen = []
    watch.when_imported("sc_package.part", lambda module: seen.append(module.value))
    watch.install()
    importlib.import_module("sc_package.part")
    assert seen == [3]


def test_a_failing_import_passes_through_and_may_succeed_later(watch, write):
    path = write("sc_failing", "raise KeyError('on purpose')\n")
    seen = []
    watch.when_imported("sc_failing", seen.append)
    watch.install()
    with pytest.raises(KeyError, match="on purpose"):
        importlib.import_module("sc_failing")
    assert "sc_failing" not in sys.modules
    assert seen == []
    path.write_text("value = 'now it works'\n")
    importlib.invalidate_caches()
    module = importlib.import_module("sc_failing")
    assert seen == [module]


def test_after_a_failing_import_others_still_count_as_outermost(watch, write, monkeypatch):
    monkeypatch.setattr(imports_module, "_WORTH_NOTING_NS", 0)
    write("sc_fails", "raise KeyError\n")
    write("sc_next")
    watch.install()
    with pytest.raises(KeyError):
        importlib.import_module("sc_fails")
    importlib.import_module("sc_next")
    assert [name for name, _, _ in watch.noted] == ["sc_fails", "sc_next"]


def test_a_module_that_does_not_exist_is_missing_as_ever(watch):
    watch.install()
    with pytest.raises(ModuleNotFoundError, match="No module named 'sc_nowhere'") as caught:
        importlib.import_module("sc_nowhere")
    assert caught.value.name == "sc_nowhere"


def test_tracebacks_of_a_failing_import_name_the_module(watch, write):
    path = write("sc_raises", "\n\nraise KeyError\n")
    watch.install()
    with pytest.raises(KeyError) as caught:
        importlib.import_module("sc_raises")
    assert any(entry.path == path and entry.lineno == 2 for entry in caught.traceback)


def test_nothing_stays_behind_on_loader_spec_and_module(watch, write):
    write("sc_bare", "value = 1\n")
    bare = importlib.import_module("sc_bare")
    plain_loader, plain_spec = dict(vars(bare.__loader__)), sorted(vars(bare.__spec__))
    names = sorted(vars(bare))
    del sys.modules["sc_bare"]
    watch.install()
    watch.when_imported("sc_bare", lambda _: None)
    watched = importlib.import_module("sc_bare")
    assert vars(watched.__loader__) == plain_loader
    assert sorted(vars(watched.__spec__)) == plain_spec
    assert sorted(vars(watched)) == names
    assert type(watched.__loader__) is type(bare.__loader__)


def test_only_slow_outermost_imports_are_noted(watch, write, monkeypatch):
    clock = SimpleNamespace(ns=1_000)
    monkeypatch.setattr(imports_module, "monotonic_ns", lambda: clock.ns)
    monkeypatch.setattr(imports_module, "_WORTH_NOTING_NS", 1_000_000)
    monkeypatch.setattr(imports_module, "is_user_file", lambda name: False)
    monkeypatch.setitem(sys.modules, "sc_clock", clock)
    write("sc_slow_inner", "import sc_clock\nsc_clock.ns += 3_000_000\n")
    write("sc_slow", "import sc_slow_inner\n")
    write("sc_quick")
    watch.install()
    importlib.import_module("sc_slow")
    importlib.import_module("sc_quick")
    assert watch.noted == [("sc_slow", 1_000, 3_000_000)]


def test_what_a_module_of_the_program_imports_of_libraries_is_noted_apart(
    watch, write, monkeypatch
):
    clock = SimpleNamespace(ns=1_000)
    monkeypatch.setattr(imports_module, "monotonic_ns", lambda: clock.ns)
    monkeypatch.setattr(imports_module, "_WORTH_NOTING_NS", 1_000_000)
    monkeypatch.setattr(imports_module, "is_user_file", lambda name: "sc_own" in name)
    monkeypatch.setitem(sys.modules, "sc_clock", clock)
    write("sc_library", "import sc_clock\nsc_clock.ns += 3_000_000\n")
    write("sc_own", "import sc_library, sc_clock\nsc_clock.ns += 2_000_000\n")
    write("sc_own_quick", "import sc_own\n")
    watch.install()
    importlib.import_module("sc_own_quick")
    assert watch.noted == [("sc_library", 1_000, 3_000_000), ("sc_own", 1_000, 2_000_000)]


def test_removed_it_sees_nothing_more(watch, write):
    write("sc_unseen")
    seen = []
    watch.when_imported("sc_unseen", seen.append)
    watch.install()
    watch.remove()
    importlib.import_module("sc_unseen")
    assert seen == []
    assert watch not in sys.meta_path
    watch.remove()


def test_the_programs_own_import_hooks_keep_working(watch):
    class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name, path=None, target=None):
            return importlib.util.spec_from_loader(name, self) if name == "sc_virtual" else None

        def exec_module(self, module):
            module.value = "made up"

    finder, seen = Finder(), []
    watch.install()
    watch.when_imported("sc_virtual", lambda module: seen.append(module.value))
    sys.meta_path.append(finder)
    try:
        assert importlib.import_module("sc_virtual").value == "made up"
    finally:
        sys.meta_path.remove(finder)
        sys.modules.pop("sc_virtual", None)
    assert seen == ["made up"]
    assert "exec_module" not in vars(finder)


@pytest.mark.filterwarnings("ignore::ImportWarning", "ignore::DeprecationWarning")
def test_a_loader_of_the_old_kind_still_loads(watch):
    class Loader:
        def load_module(self, name):
            module = type(sys)(name)
            module.value = "old"
            sys.modules[name] = module
            return module

    class Finder:
        def find_spec(self, name, path=None, target=None):
            from importlib.machinery import ModuleSpec

            return ModuleSpec(name, Loader()) if name == "sc_old" else None

    finder = Finder()
    sys.meta_path.append(finder)
    try:
        watch.install()
        assert importlib.import_module("sc_old").value == "old"
    finally:
        sys.meta_path.remove(finder)
        sys.modules.pop("sc_old", None)


def test_a_reload_works_and_is_not_a_first_import(watch, write):
    path = write("sc_again", "value = 1\n")
    seen = []
    watch.install()
    watch.when_imported("sc_again", lambda module: seen.append(module.value))
    module = importlib.import_module("sc_again")
    path.write_text("value = 22\n")
    importlib.invalidate_caches()
    assert importlib.reload(module).value == 22
    assert seen == [1]


def test_what_waits_for_torch_imports_nothing_a_file_of_the_programs_may_be_called():
    code = (
        "import sys, torch\n"
        "before = {*sys.modules}\n"
        "import stepscope.launch.bootstrap, stepscope.probe.observer\n"
        "print([name for name in {*sys.modules} - before if not name.startswith('stepscope')])"
    )
    environ = os.environ | {"PYTHONPATH": str(Path(stepscope.__file__).parent.parent)}
    said = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert (said.stdout, said.returncode) == ("[]\n", 0), said.stderr
