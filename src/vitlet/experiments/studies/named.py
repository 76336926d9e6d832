"""Studies by file, by folder, by name, or made from a table of a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from vitlet.errors import VitletError, nearest
from vitlet.experiments.recipes import PAPER_TABLES, Scale
from vitlet.experiments.studies.definition import Study, read_study

ROOT = Path("studies")


def find_study(
    name: str, *, scale: Scale | None = None, seeds: int | None = None, write: bool = True
) -> tuple[Study, Path]:
    """A study and its YAML file; a paper's table becomes ``studies/TABLE/study.yaml`` first.

    Args:
        name: name of the file, its folder, a folder in ``studies/``, or a table of a paper.
        scale: scale of a table [full].
        seeds: seeds of a table, how many (default: as many as the paper has, 3 where it does not say).
        write: that file; without it nothing is left behind.
    """
    file, values = _study_file(name, scale or "full", seeds)
    study = read_study(file, values)
    if scale not in (None, study.scale):
        raise VitletError(f"--recipe-size {scale} was given, but {file} has scale {study.scale}. Change it there.")
    if seeds not in (None, len(study.seeds)):
        raise VitletError(f"--seeds {seeds} was given, but {file} has {len(study.seeds)} seeds. Change it there.")
    if values is not None and write:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return study, file


def _study_file(name: str, scale: Scale, seeds: int | None) -> tuple[Path, dict[str, Any] | None]:
    """The YAML file that a name means, and what that of a paper's table is to hold where it is not there."""
    for path in (Path(name), Path(name) / "study.yaml", ROOT / f"{name}.yaml", ROOT / name / "study.yaml"):
        if path.is_file():
            if path.suffix not in (".yaml", ".yml"):
                raise VitletError(f"{path} is not a study: the file name must end in .yaml or .yml.")
            return path, None
    if name not in PAPER_TABLES:
        there = sorted(path.parent.name for path in ROOT.glob("*/study.yaml"))
        raise VitletError(
            f"no study {name!r}: neither a YAML file, nor a folder with study.yaml, nor one of {ROOT}/"
            f" ({', '.join(there) or 'empty'}), nor a table of the papers ({', '.join(PAPER_TABLES)})."
            f"{nearest(name, [*there, *PAPER_TABLES])}"
        )
    file = ROOT / (name if scale == "full" else f"{name}-{scale}") / "study.yaml"
    title = PAPER_TABLES[name].title + ("" if scale == "full" else f", at {scale} size{_stand_ins(name, scale)}")
    seeds = seeds or PAPER_TABLES[name].seeds
    return file, None if file.is_file() else {"title": title, "table": name, "scale": scale, "seeds": seeds}


def _stand_ins(table: str, scale: Scale) -> str:
    """Which data takes the place of which at this size, in words."""
    found = {row.config(scale).data: row.dataset for row in reversed(PAPER_TABLES[table].recipes)}
    other = [f"{data} for {dataset}" for data, dataset in found.items() if not data.startswith(dataset)]
    return f" ({', '.join(other)})" if other else ""
