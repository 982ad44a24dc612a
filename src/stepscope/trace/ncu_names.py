"""Names of kernels, comparable between tools that print them differently.

Kineto writes `void at::native::(anonymous namespace)::k<float>(float*, long)`, Nsight Compute
`void at::<unnamed>::k<float>(T1 *, long)`, or only `k`.
"""

import re

_UNNAMED = re.compile(r"<unnamed>|\(anonymous namespace\)")
_WORD = re.compile(r"[A-Za-z_]\w+")
_PRINTED = re.compile(r"T\d+|instance|unnamed|namespace|anonymous|lambda|operator|const|void")


def base_name(name: str) -> str:
    """The function's own name: without result, namespaces, template arguments and parameters."""
    depth = 0
    own: list[str] = []
    for character in _UNNAMED.sub("", name):
        if character in "<([{":
            if character == "(" and depth == 0 and own:
                break
            depth += 1
        elif character in ">)]}":
            depth = max(depth - 1, 0)
        elif depth == 0:
            own.append(character)
    return "".join(own).strip().rsplit("::", 1)[-1].rsplit(" ", 1)[-1] or name


def exact_name(name: str) -> str:
    """The whole name without blanks, which tools set differently."""
    return name.replace(" ", "")


def agree(counted: str, recorded: str) -> bool:
    """Whether the words of Nsight Compute's name all stand in the recorded one.

    It leaves namespaces out and writes T1 for a template's type, but invents no other word. A
    name that came without its template arguments agrees with all of its base.
    """
    if "<" not in recorded:
        return True
    words = {w for w in _WORD.findall(counted) if not _PRINTED.fullmatch(w)}
    return words <= set(_WORD.findall(recorded))
