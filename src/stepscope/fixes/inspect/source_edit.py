"""Changes of one source line: arguments of a call added or replaced."""

import ast


def with_arguments(line: str, callee: str, arguments: dict[str, str]) -> str | None:
    """The line with keyword arguments of the call of `callee` set to these expressions.

    None where the line is no statement of its own or does not call that.
    """
    indent = line[: len(line) - len(line.lstrip())]
    text = line.strip()
    for name, value in arguments.items():
        call = _call(text, callee)
        if call is None or call.end_col_offset is None:
            return None
        text = _set(text, call, name, value)
    return indent + text


def _call(text: str, callee: str) -> ast.Call | None:
    """The call of something named `callee` in a line; a line that opens a block counts."""
    if not text.isascii():  # offsets count bytes
        return None
    for source in (text, f"{text} pass"):
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name == callee:
                    return node
    return None


def _set(text: str, call: ast.Call, name: str, value: str) -> str:
    for keyword in call.keywords:
        if keyword.arg == name:
            begin, end = keyword.value.col_offset, keyword.value.end_col_offset
            return text[:begin] + value + text[end:]
    end = (call.end_col_offset or len(text)) - 1
    before = text[:end].rstrip().removesuffix(",")
    comma = ", " if call.args or call.keywords else ""
    return f"{before}{comma}{name}={value}{text[end:]}"
