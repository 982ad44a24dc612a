"""JSON documents, written whole or not at all."""

import json
from pathlib import Path
from typing import Any


def write_json(path: Path, document: Any, indent: int | None = 1) -> None:
    """Replace a file by a document. Raises OSError, and leaves what was there then."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(json.dumps(document, indent=indent) + "\n")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
