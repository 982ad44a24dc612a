"""Fused attention in place of the one that is computed step by step."""

from typing import Any

from stepscope.fixes.base import Edit, Fix, Hands, Kind
from stepscope.fixes.source import with_arguments


class Sdpa(Fix):
    """In torch's MultiheadAttention, in models of transformers, and where the program turns the
    fused kernels off. Attention written out by hand is named, not changed."""

    name = "sdpa"
    group = "arithmetic"
    title = "fused attention in torch's and transformers' layers"
    kind = Kind.NUMERIC
    effort = "one argument"
    missing = "no attention was found that torch or transformers could fuse"

    def install(self, value: Any, hands: Hands) -> None:
        from stepscope.fixes.sdpa_switches import keep_on
        from stepscope.fixes.sdpa_transformers import Switching
        from stepscope.fixes.sdpa_weights import drop_unused
        from stepscope.fixes.sdpa_written import name_it

        switching = Switching(hands)
        keep_on(hands)
        drop_unused(hands)
        hands.seams.root_found(switching.found)
        hands.seams.root_found(lambda module: name_it(module, hands))
        hands.seams.root_called(switching.called)

    def explain(self, error: BaseException, line: str) -> str | None:
        text = str(error)
        if "scaled_dot_product" in text and "not implemented" in text:
            return f"`{line}` needs second derivatives, which fused attention does not have"
        return None

    def edit(self, value: Any, line: str) -> Edit:
        changed = with_arguments(line, "from_pretrained", {"attn_implementation": '"sdpa"'})
        if changed is not None:
            return Edit('pass attn_implementation="sdpa"', changed)
        return Edit(
            "pass need_weights=False to MultiheadAttention, or call "
            "torch.nn.functional.scaled_dot_product_attention"
        )


FIX = Sdpa()
