"""Why is this PyTorch program slow, and what makes it fast?"""

from typing import TYPE_CHECKING, Any

from stepscope.record.version import __version__

__all__ = ["__version__", "observe", "step"]

if TYPE_CHECKING:
    from stepscope.api import observe, step


def __getattr__(name: str) -> Any:
    if name in ("observe", "step"):
        from stepscope import api

        return getattr(api, name)
    raise AttributeError(f"module 'stepscope' has no attribute {name!r}")
