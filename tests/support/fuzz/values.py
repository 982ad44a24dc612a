"""Damage that any file can take: other values in JSON, other bytes, something that is no file."""

import copy
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

NESTED = "<nested>"
"""Stands for lists in lists, 100,000 deep: see `dumped`."""
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**31, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.0, 1e-320, 1e308),
    *(float("nan"), float("inf"), float("-inf"), "", "x", "../../../x", "/dev/zero", "\0"),
    *("\ud800", "a" * 100_000, "\x1b[2J\n\r", "1e5"),
    *([], [[]], [None], ["x"], [1, "x"], {}, {"": None}),
    *({"x": {"x": 1}}, [{}], NESTED),
)  # fmt: skip
_DEEP = "[" * 100_000 + "]" * 100_000


def dumped(document: Any) -> str:
    """A document as JSON, deep where it says so."""
    return json.dumps(document).replace(json.dumps(NESTED), _DEEP)


_INTEGERS = (0, 1, -1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, -1.0, 1e-320, 1e-9, 1e9, 1e18, 1e300, -1e300)
_TEXTS = (
    *(
        "",
        "x",
        "../../../x",
        "/",
        "-",
        "--json",
        "a\nb",
        "\x1b[2J",
        "<b>&amp;</b>",
        "$x_{y}%\\",
        "\0",
    ),
    *("a" * 5000, "é" * 300, "\ud800", "nan", "2026-01-01T00:00:00+00:00", "\u202e", "[red]x[/]"),
)


def similar(value: Any, draw: random.Random) -> Any:
    """Another value of the same type: no check of types refuses it."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice((*_INTEGERS, -value, value + 1, value * 1000))
    if isinstance(value, float):
        return draw.choice((*_FLOATS, -value, value * 1e6))
    if isinstance(value, str):
        return draw.choice((*_TEXTS, value + value, value.upper(), value[:-1]))
    if isinstance(value, list):
        mixed = draw.sample(value, len(value))
        return draw.choice(([], value * 2, value[:1] * 300, value[::-1], mixed, value[:-1]))
    if isinstance(value, dict):
        kept = draw.sample(list(value), draw.randrange(len(value) + 1))
        renamed = {draw.choice(_TEXTS): part for part in value.values()}
        return draw.choice(({}, {key: value[key] for key in kept}, renamed, value | renamed))
    return draw.choice(VALUES)


def change_value(document: Any, draw: random.Random, values: tuple[Any, ...] = VALUES) -> str:
    """Put another value, or none, somewhere in a document; what was done, in words."""
    parent, key, where = document, None, []
    while isinstance(parent, dict | list) and parent:
        key = draw.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        where.append(key)
        if not isinstance(parent[key], dict | list) or not parent[key] or draw.random() < 0.15:
            break
        parent = parent[key]
    if not where:
        return "nothing"
    if draw.random() < 0.1:
        value = "<gone>"
        del parent[key]
    else:
        value = similar(parent[key], draw) if draw.random() < 0.5 else draw.choice(values)
        parent[key] = copy.deepcopy(value)  # which may be changed in turn
    return f"{where} is {str(value)[:40]!r}"


def damage_document(path: Path, draw: random.Random) -> str:
    """Other values in a JSON document, or in lines of a file of them, or a key twice."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    done = []
    for number in draw.sample(range(len(lines)), min(len(lines), draw.choice((1, 1, 1, 2, 4)))):
        document = json.loads(lines[number])
        what = "; ".join(change_value(document, draw) for _ in range(draw.choice((1, 1, 1, 2, 3))))
        lines[number] = dumped(document)
        if isinstance(document, dict) and document and draw.random() < 0.05:
            key, value = json.dumps(draw.choice(list(document))), dumped(draw.choice(VALUES))
            lines[number] = f"{lines[number][:-1]}, {key}: {value}}}"
            what += f", {key} again as {value[:40]}"
        done.append(f"line {number + 1}: {what}")
    if len(lines) > 1 and draw.random() < 0.1:
        damage = draw.choice((lines.reverse, lines.clear, lambda: lines.extend(lines)))
        damage()
        done.append("its lines reversed, gone or doubled")
    path.write_text("\n".join(lines) + draw.choice(("\n", "\n", "\n", "", "\n\n")))
    return f"{path.name}, {'; '.join(done)}"


def damage_bytes(path: Path, draw: random.Random) -> str:
    """Cut a file off, or change some bytes."""
    data = bytearray(path.read_bytes())
    if draw.random() < 0.4:
        end = draw.randrange(len(data))
        path.write_bytes(data[:end])
        return f"{path.name} is cut off at byte {end}"
    at = [draw.randrange(len(data)) for _ in range(draw.choice((1, 1, 3, 30)))]
    for one in at:
        data[one] = draw.randrange(256)
    path.write_bytes(data)
    return f"{path.name} has other bytes at {at}"


def replace_file(path: Path, draw: random.Random) -> str:
    """Something else where a file was."""
    whole = path.read_bytes()
    path.unlink()

    def sparse(head: bytes = b"") -> None:
        path.write_bytes(head)
        os.truncate(path, 20 << 30)

    kinds: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "an empty file": path.touch,
        "a folder": path.mkdir,
        "a FIFO": lambda: os.mkfifo(path),
        "a link to /dev/zero": lambda: path.symlink_to("/dev/zero"),
        "a link to itself": lambda: path.symlink_to(path),
        "a dangling link": lambda: path.symlink_to("/nowhere"),
        "20 GiB of nothing": sparse,
        "20 GiB that begin well": lambda: sparse(whole[: len(whole) // 2]),
        "zeros": lambda: path.write_bytes(bytes(len(whole))),
        "noise": lambda: path.write_bytes(draw.randbytes(len(whole))),
        "deep lists": lambda: path.write_text(_DEEP),
        "an empty object": lambda: path.write_text("{}"),
        "another language": lambda: path.write_bytes('{"schéma": 1}'.encode("utf-16")),
    }
    kind = draw.choice(list(kinds))
    kinds[kind]()
    return f"{path.name} is {kind}"
