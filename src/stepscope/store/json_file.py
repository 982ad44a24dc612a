"""JSON documents, written whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, document: Any, indent: int | None = 1, allow_nan: bool = True) -> None:
    """Replace a file by a document. Raises OSError, and leaves what was there then."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(document, indent=indent, allow_nan=allow_nan) + "\n")
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
