"""The example package of `tests/plugins` as if it were installed, without installing anything."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "plugins" / "stepscope_example"


def installed(folder: Path, more: Mapping[str, Mapping[str, str]] | None = None) -> list[str]:
    """What to put on the path: the package, and what pip would write of it, made in `folder`.

    `more` are entry points by group, besides those of its pyproject.toml.
    """
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    points = {group: {**names} for group, names in project["entry-points"].items()}
    for group, names in (more or {}).items():
        points.setdefault(group, {}).update(names)
    about = folder / f"stepscope_example-{project['version']}.dist-info"
    about.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (about / "METADATA").write_text(head)
    lines = [
        line
        for group, names in points.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in names.items()), "")
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))
    return [str(folder), str(EXAMPLE)]
