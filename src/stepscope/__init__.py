"""Why is this PyTorch program slow, and what makes it fast?"""

from typing import TYPE_CHECKING, Any

from stepscope.record.version import __version__

__all__ = [
    "__version__",
    "apply",
    "find_batch_size",
    "load",
    "observe",
    "run_quick_profile",
    "step",
]

if TYPE_CHECKING:
    from stepscope.api import apply, find_batch_size, load, observe, step
    from stepscope.quick import run_quick_profile


def __getattr__(name: str) -> Any:
    if name == "run_quick_profile":
        from stepscope.quick import run_quick_profile

        return run_quick_profile
    if name in __all__:
        from stepscope import api

        return getattr(api, name)
    raise AttributeError(f"module 'stepscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext stepscope`: adds the cell magic `%%stepscope` to a notebook."""
    from stepscope.magic import register

    register(shell)
