"""Kernel names short enough for a label."""

import re

_LONGEST = 60
_GENERIC = re.compile(r"(?i)(\w+_)?(elementwise|reduce|apply|device)?_?kernel\d?$")
_MEANT = re.compile(r"\b(cutlass_\w+|\w*Functor\w*|\w+_kernel_cuda|launch_\w+|\w+Ops?)\b")
"""What a kernel of a generic name was made for, in its types."""
_ANONYMOUS = "(anonymous namespace)::"


def short_kernel(name: str) -> str:
    """The function's own name, without its types and arguments; clipped where it is still long."""
    bare = _without_types(name.replace(_ANONYMOUS, "")).partition("(")[0].strip()
    last = bare.split(" ")[-1].rpartition("::")[2] if not _is_copy(name) else bare
    meant = _MEANT.search(name) if _GENERIC.match(last) else None
    shown = meant[1] if meant else last or name
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


def _is_copy(name: str) -> bool:
    """`Memcpy HtoD (Pageable -> Device)` and `Memset (Device)` are words."""
    return name.startswith(("Memcpy", "Memset"))


def _without_types(name: str) -> str:
    """What stands outside <…>; the whole name where the brackets do not match."""
    kept: list[str] = []
    depth = 0
    for letter in name:
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
            if depth < 0:
                return name
        elif not depth:
            kept.append(letter)
    return "".join(kept) if not depth else name
