"""Studies by file, by folder, by name, or made from a table of a paper."""

from __future__ import annotations

from pathlib import Path

import yaml

from vitlet.errors import VitletError, nearest
from vitlet.recipes import TABLES, Scale
from vitlet.studies.definition import Study, read_study

ROOT = Path("studies")


def find_study(name: str, *, scale: Scale = "full", seeds: int | None = None) -> tuple[Study, Path]:
    """A study and its YAML file; a paper's table becomes ``studies/TABLE/study.yaml`` first."""
    for path in (Path(name), Path(name) / "study.yaml", ROOT / f"{name}.yaml", ROOT / name / "study.yaml"):
        if path.is_file():
            return read_study(path), path
    if name in TABLES:
        folder = ROOT / (name if scale == "full" else f"{name}-{scale}")
        file = folder / "study.yaml"
        if not file.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            file.write_text(table_study(name, scale, seeds or 3), encoding="utf-8")
        return read_study(file), file
    there = sorted(path.parent.name for path in ROOT.glob("*/study.yaml"))
    hint = nearest(name, [*there, *TABLES])
    raise VitletError(
        f"no study {name!r}: neither a YAML file, nor a folder with study.yaml, nor one of {ROOT}/"
        f" ({', '.join(there) or 'empty'}), nor a table of the papers ({', '.join(TABLES)}).{hint}"
    )


def table_study(table: str, scale: Scale, seeds: int) -> str:
    """The YAML text of a table's study."""
    size = "" if scale == "full" else f", at {scale} size"
    values = {"title": f"{TABLES[table]}{size}", "table": table, "scale": scale, "seeds": seeds}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
