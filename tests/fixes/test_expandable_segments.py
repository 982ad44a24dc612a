"""The CUDA allocator's growing segments."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from fixing import fixed

from stepscope.fixes.inspect import devices
from stepscope.fixes.registry import fix_named, fix_variables, parse_fixes

NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda="13.0"))
    monkeypatch.setattr(devices, "cuda_here", lambda: True)


def test_the_program_is_started_with_the_variables():
    found = fix_variables(parse_fixes(["expandable_segments"]))
    assert found == dict.fromkeys(NAMES, "expandable_segments:True")


@pytest.mark.parametrize("name", NAMES)
def test_the_users_own_settings_are_kept(monkeypatch, name):
    monkeypatch.setenv(name, "roundup_power2_divisions:[64:8,>:1], expandable_segments:False")
    found = fix_named("expandable_segments").environment(None)
    both = "roundup_power2_divisions:[64:8,>:1],expandable_segments:True"
    assert found == dict.fromkeys(NAMES, both)


def test_without_cuda_it_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "cuda_here", lambda: False)
    with fixed(tmp_path, "expandable_segments") as run:
        pass
    assert run.fixes()["expandable_segments"]["reasons"] == ["no CUDA device"]


def test_with_cuda_it_applies(tmp_path, monkeypatch, cuda):
    for name, value in fix_variables(parse_fixes(["expandable_segments"])).items():
        monkeypatch.setenv(name, value)
    with fixed(tmp_path, "expandable_segments") as run:
        pass
    assert run.fixes()["expandable_segments"]["state"] == "applied"
    assert run.fixes()["expandable_segments"]["kind"] == "exact"


def test_a_program_that_sets_the_variable_itself_is_told_so(tmp_path, monkeypatch, cuda):
    monkeypatch.setenv(NAMES[0], "max_split_size_mb:128")
    monkeypatch.setenv(NAMES[1], "expandable_segments:True")
    with fixed(tmp_path, "expandable_segments") as run:
        pass
    reasons = run.fixes()["expandable_segments"]["reasons"]
    assert reasons == [
        f"the program sets {NAMES[0]} itself: add expandable_segments:True to it there"
    ]


def test_its_edit():
    edit = fix_named("expandable_segments").edit(None, "import torch")
    assert edit.before[1] == f'os.environ["{NAMES[0]}"] = "expandable_segments:True"'


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_allocator_really_uses_them():
    code = (
        "import torch; torch.zeros(1, device='cuda');"
        "print(torch.cuda.memory._snapshot()['allocator_settings']['expandable_segments'])"
    )
    import os

    variables = os.environ | fix_variables(parse_fixes(["expandable_segments"]))
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True)
    assert done.stdout.strip() == b"True"
    assert b"deprecated" not in done.stderr
