"""What the two devices of a study can do at best."""

import os
from collections.abc import Callable

from stepscope.record.errors import StepscopeError


def device_ceilings(device: str, tell: Callable[[str], None]) -> dict[str, float]:
    """Measured ceilings by name, taken from the cache or measured now; empty where they cannot be.

    What is measured here is kept for next time.
    """
    from stepscope.hardware.ceilings import device_key, load_ceilings, measure, save_ceilings
    from stepscope.hardware.visible import visible_index

    key = device_key(device, visible_index(os.environ) if device == "cuda" else None)
    document = load_ceilings(key)
    if document is None:
        tell(f"measuring what {device} can do, once; this takes some seconds")
        try:
            document = measure(device, key)
            save_ceilings(document)
        except StepscopeError as problem:
            tell(f"the ceilings of {device} are not known: {problem}")
            return {}
        except OSError:
            pass  # not kept for next time, and as good as any for this one
    found = (document or {}).get("ceilings", {})
    return {name: float(entry["value"]) for name, entry in found.items()}
