"""torch's own fused attention, where the program turns it off."""

from typing import Any

from stepscope.fixes.base import Hands


def keep_on(hands: Hands) -> None:
    """Let neither switches nor contexts leave only the attention that is written out in steps.

    cuDNN's is left as the program wants it: some turn it off for its faults.
    """
    import torch
    import torch.nn.attention as attention
    from torch.backends import cuda

    def allowed() -> bool:
        if not torch.are_deterministic_algorithms_enabled():
            return True
        hands.unfit(f"the program at {hands.place()} wants the same results every time")
        return False

    def switched(call: Any, enabled: Any) -> None:
        if not enabled and allowed():
            hands.applied(f"fused attention kept on at {hands.place()}")
            enabled = True
        call(enabled)

    def chosen(call: Any, backends: Any, *args: Any, **kwargs: Any) -> Any:
        asked = list(backends) if isinstance(backends, list | tuple) else [backends]
        kinds = attention.SDPBackend
        fused = [kinds.FLASH_ATTENTION, kinds.EFFICIENT_ATTENTION]
        if kinds.MATH in asked and not any(one in asked for one in fused) and allowed():
            hands.applied(f"fused attention allowed at {hands.place()}")
            backends = [*fused, *asked]
        return call(backends, *args, **kwargs)

    hands.seams.around(cuda, "enable_flash_sdp", switched)
    hands.seams.around(cuda, "enable_mem_efficient_sdp", switched)
    hands.seams.around(attention, "sdpa_kernel", chosen)
