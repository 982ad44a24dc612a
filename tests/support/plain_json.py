"""Records as a JSON document holds them."""

import msgspec


def in_json(record):
    """Dictionaries and lists."""
    return msgspec.json.decode(msgspec.json.encode(record))
