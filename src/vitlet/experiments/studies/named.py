"""Studies by file, by folder, by name, or made from a table of a paper."""

from __future__ import annotations

from pathlib import Path

import yaml

from vitlet.errors import VitletError, nearest
from vitlet.experiments.recipes import PAPER_TABLES, Scale
from vitlet.experiments.studies.definition import Study, read_study

ROOT = Path("studies")


def find_study(name: str, *, scale: Scale | None = None, seeds: int | None = None) -> tuple[Study, Path]:
    """A study and its YAML file; a paper's table becomes ``studies/TABLE/study.yaml`` first.

    Args:
        name: of the file, its folder, a folder in ``studies/``, or a table of a paper.
        scale: of a table [full].
        seeds: of a table, how many [3].
    """
    for path in (Path(name), Path(name) / "study.yaml", ROOT / f"{name}.yaml", ROOT / name / "study.yaml"):
        if path.is_file():
            if path.suffix not in (".yaml", ".yml"):
                raise VitletError(f"{path} is no study: its file needs to end in .yaml or .yml.")
            return _as_asked(read_study(path), path, scale, seeds), path
    if name in PAPER_TABLES:
        folder = ROOT / (name if scale in (None, "full") else f"{name}-{scale}")
        file = folder / "study.yaml"
        if not file.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            file.write_text(table_study(name, scale or "full", 3 if seeds is None else seeds), encoding="utf-8")
        return _as_asked(read_study(file), file, scale, seeds), file
    there = sorted(path.parent.name for path in ROOT.glob("*/study.yaml"))
    hint = nearest(name, [*there, *PAPER_TABLES])
    raise VitletError(
        f"no study {name!r}: neither a YAML file, nor a folder with study.yaml, nor one of {ROOT}/"
        f" ({', '.join(there) or 'empty'}), nor a table of the papers ({', '.join(PAPER_TABLES)}).{hint}"
    )


def _as_asked(study: Study, file: Path, scale: Scale | None, seeds: int | None) -> Study:
    """The study, if its file says what was asked for."""
    if scale not in (None, study.scale):
        raise VitletError(f"--scale {scale} was asked for, but {file} has scale {study.scale}. Change it there.")
    if seeds not in (None, len(study.seeds)):
        raise VitletError(f"--seeds {seeds} was asked for, but {file} has {len(study.seeds)} seeds. Change it there.")
    return study


def table_study(table: str, scale: Scale, seeds: int) -> str:
    """The YAML text of a table's study."""
    size = "" if scale == "full" else f", at {scale} size"
    values = {"title": f"{PAPER_TABLES[table].title}{size}", "table": table, "scale": scale, "seeds": seeds}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
