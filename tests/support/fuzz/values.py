"""Damage that any file can take: other values in JSON, other bytes, something that is no file."""

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
        parent[key] = value = draw.choice(values)
    return f"{where} is {str(value)[:40]!r}"


def damage_document(path: Path, draw: random.Random) -> str:
    """Another value in a JSON document, or in one line of a file of them."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = draw.randrange(len(lines))
    document = json.loads(lines[number])
    what = change_value(document, draw)
    lines[number] = dumped(document)
    path.write_text("\n".join(lines) + "\n")
    return f"{path.name}, line {number + 1}: {what}"


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
