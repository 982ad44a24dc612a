"""What all tests share: which of them start processes, and an environment without surprises."""

import gc
import os
import sys

import children
import pytest
import warm
from hypothesis import HealthCheck, settings

from stepscope.measure.trial import host

# Where packages were installed without compiling them, every process would compile torch anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


# The same examples each time, however slow the machine is.
settings.register_profile(
    "stepscope",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("stepscope")


def pytest_configure(config: pytest.Config) -> None:
    children.guard()
    host.ForkServer = warm.SharedServer  # one for all trials of this process


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what their code does. Those that take long come first."""
    for item in items:
        if children.launches(item):
            item.add_marker("launches")
        elif item.get_closest_marker("slow") is None and not children.takes_long(item):
            item.add_marker("unit")
    items.sort(key=lambda item: item.get_closest_marker("launches") is None)


def pytest_collection_finish() -> None:
    """What all tests have in memory by now need not be looked through again for garbage."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    children.watch(item)
