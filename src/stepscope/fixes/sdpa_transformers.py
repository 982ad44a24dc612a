"""Models of transformers that compute attention step by step ("eager")."""

import sys
from typing import Any

from stepscope.fixes.base import Hands

_RETURNS_WEIGHTS = "output_attentions"


class Switching:
    """Has models use torch's fused attention, and back when weights are asked for."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._switched: dict[int, list[Any]] = {}  # by root

    def found(self, module: Any) -> None:
        """Switch the models of transformers within a root, before its first call."""
        if "transformers.modeling_utils" not in sys.modules:
            return
        from transformers import PreTrainedModel

        inside: set[int] = set()
        for model in module.modules():
            if not isinstance(model, PreTrainedModel) or id(model) in inside:
                continue
            inside.update(id(part) for part in model.modules())
            if self._switch(model):
                self._switched.setdefault(id(module), []).append(model)

    def called(self, call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Fused attention has no weights to return."""
        if kwargs.get(_RETURNS_WEIGHTS) and id(module) in self._switched:
            for model in self._switched.pop(id(module)):
                model.set_attn_implementation("eager")
            self._hands.unfit(f"attention weights are asked for at {self._hands.place()}")
        return call(module, *args, **kwargs)

    def _switch(self, model: Any) -> bool:
        name = type(model).__qualname__
        config = model.config
        if getattr(config, "_attn_implementation", None) != "eager":
            return False
        if getattr(config, _RETURNS_WEIGHTS, False):
            self._hands.unfit(f"{name} returns attention weights ({_RETURNS_WEIGHTS})")
            return False
        try:
            model.set_attn_implementation("sdpa")
        except (AttributeError, ValueError, ImportError):
            pass
        if config._attn_implementation != "sdpa":
            self._hands.unfit(f"{name} has no attention but its own")
            return False
        self._hands.applied(f'{name} with attn_implementation="sdpa"')
        return True
