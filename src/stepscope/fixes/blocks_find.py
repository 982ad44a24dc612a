"""The repeated blocks of a model: layers of a transformer, residual blocks."""

from typing import Any


def repeated_blocks(root: Any) -> list[Any]:
    """Outermost modules that stand in a row with others of their class and have parts.

    Empty where they hold less than half of the model's layers.
    """
    from torch.nn import ModuleDict, ModuleList, Sequential

    found: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        module = waiting.pop()
        children = list(module.children())
        row = isinstance(module, ModuleList | ModuleDict | Sequential)
        for child in children:
            if row and _is_repeated(child, children):
                found[id(child)] = child
            else:
                waiting.append(child)
    blocks = list(found.values())
    return blocks if 2 * sum(map(_layers, blocks)) >= _layers(root) else []


def offering(root: Any) -> list[Any]:
    """Outermost models that can checkpoint their own layers, as those of transformers can."""
    if getattr(root, "supports_gradient_checkpointing", False) and hasattr(
        root, "gradient_checkpointing_enable"
    ):
        return [root]
    return [model for child in root.children() for model in offering(child)]


def _is_repeated(module: Any, row: list[Any]) -> bool:
    alike = sum(type(other) is type(module) for other in row)
    return alike > 1 and next(module.children(), None) is not None


def _layers(module: Any) -> int:
    """Modules without parts inside one."""
    return sum(next(part.children(), None) is None for part in module.modules())
