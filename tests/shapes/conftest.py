"""One pair of runs per program and test run, whatever asks for it and in which worker."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest
from harness import Outcome, outcome_of


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where outcomes are kept: the same folder in all workers of a parallel test run."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "shapes"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def outcome(request: pytest.FixtureRequest, runs_folder: Path) -> Outcome:
    """Both runs of the program the test is parametrised with."""
    shape = request.param
    for need in shape.expects.get("needs", "").split():
        if importlib.util.find_spec(need) is None and shutil.which(need) is None:
            pytest.skip(f"{need} is not installed")
    return outcome_of(shape, runs_folder)
