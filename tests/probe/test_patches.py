"""What is patched comes back exactly as it was."""

import types

import pytest

from stepscope.probe.patches import Patches


class Base:
    def call(self):
        return "base"

    @staticmethod
    def fixed():
        return "fixed"


class Derived(Base):
    pass


def test_a_function_of_a_module_is_replaced_and_restored():
    module = types.ModuleType("temporary")
    module.save = original = lambda: "original"
    patches = Patches()
    patches.set(module, "save", lambda: "patched")
    assert module.save() == "patched"
    patches.restore()
    assert module.save is original


def test_what_was_inherited_is_inherited_again():
    patches = Patches()
    patches.set(Derived, "call", lambda self: "patched")
    assert Derived().call() == "patched"
    assert Base().call() == "base"
    patches.restore()
    assert "call" not in vars(Derived)
    assert Derived().call() == "base"


def test_a_static_method_stays_static():
    before = vars(Base)["fixed"]
    patches = Patches()
    patches.set(Base, "fixed", staticmethod(lambda: "patched"))
    patches.restore()
    assert vars(Base)["fixed"] is before
    assert isinstance(vars(Base)["fixed"], staticmethod)


def test_patches_of_the_same_name_are_undone_in_reverse():
    before = vars(Base)["call"]
    patches = Patches()
    patches.set(Base, "call", lambda self: "first")
    patches.set(Base, "call", lambda self: "second")
    assert Base().call() == "second"
    patches.restore()
    assert vars(Base)["call"] is before


def test_restoring_twice_changes_nothing_more():
    module = types.ModuleType("temporary")
    module.value = 1
    patches = Patches()
    patches.set(module, "value", 2)
    patches.restore()
    module.value = 3
    patches.restore()
    assert module.value == 3


def test_a_name_that_did_not_exist_is_gone_again():
    module = types.ModuleType("temporary")
    patches = Patches()
    patches.set(module, "fresh", 1)
    patches.restore()
    with pytest.raises(AttributeError):
        _ = module.fresh


def test_what_is_released_does_not_come_back():
    owner = type("Owner", (), {"kept": 1, "inherited": 2})
    heir, patches = type("Heir", (owner,), {"own": 3}), Patches()
    patches.set(heir, "own", 30)
    patches.set(heir, "inherited", 20)
    patches.set(owner, "kept", 10)
    assert patches.release(heir)
    assert not patches.release(heir)
    for again in (patches.suspend, patches.resume, patches.restore):
        assert (heir.own, heir.inherited, "inherited" in vars(heir)) == (3, 2, False)
        again()
    assert (heir.own, heir.inherited, owner.kept) == (3, 2, 1)


def test_one_name_of_an_owner_is_released():
    owner, patches = type("Owner", (), {"a": 1, "b": 2}), Patches()
    patches.set(owner, "a", 10)
    patches.set(owner, "b", 20)
    assert patches.release(owner, "a")
    assert (owner.a, owner.b) == (1, 20)
