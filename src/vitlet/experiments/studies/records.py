"""Result of a study's cell as a small file that can be committed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vitlet.errors import VitletError
from vitlet.experiments.studies.definition import Cell, Study
from vitlet.training.files import write_atomically
from vitlet.values import is_number

FORMAT = 1


@dataclass(frozen=True)
class Record:
    """The outcome of one run; accuracies in percent.

    Attributes:
        cpu_seconds: CPU time in seconds of the whole run; None where it was done in several pieces.
        test_asked: whether a test number was wanted; data without test images has none all the same.
    """

    cell: Cell
    settings: dict[str, Any]
    val_curve: tuple[float, ...]
    best_epoch: int
    val_best: float | None
    test_best: float | None
    test_last: float | None
    tasks: dict[str, float]
    train_images: int
    test_images: int
    cpu_seconds: float | None
    made_by: dict[str, str] = field(default_factory=dict)
    test_asked: bool = False

    def write(self, folder: Path) -> Path:
        """Write the file of this cell below ``folder``, atomically."""
        path = record_path(folder, self.cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")
        return path


def records_folder(file: Path) -> Path:
    """Folder of a study's records and report: that of study.yaml, or a folder named after another file."""
    return file.parent if file.name == "study.yaml" else file.with_suffix("")


def record_path(folder: Path, cell: Cell) -> Path:
    """Path of the record of a cell."""
    return folder / "cells" / f"{cell.name}.json"


def read_record(path: Path) -> Record:
    """Read a record; `VitletError` if the file is invalid."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        version = found.pop("format")
        if version != FORMAT:
            raise VitletError(
                f"{path} is a result of format {version}; this version reads format {FORMAT}. Remove it to run the cell"
                " again, or use the version that wrote it."
            )
        found["cell"] = Cell(**found["cell"])
        found["val_curve"] = tuple(found["val_curve"])
        record = Record(**found)
        if wrong := _wrong(record):
            raise ValueError(f"{wrong} is {getattr(record, wrong)!r}")
        return record
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise VitletError(f"{path} is not the result of a cell: {problem}. Remove it to run the cell again.") from None


def _wrong(record: Record) -> str | None:
    """The name of a value of another kind than a cell writes."""
    found = vars(record)
    optional = [name for name in ("val_best", "test_best", "test_last", "cpu_seconds") if found[name] is not None]
    wrong = [name for name in ("settings", "tasks", "made_by") if not isinstance(found[name], dict)]
    wrong += [name for name in ("best_epoch", "train_images", "test_images", *optional) if not is_number(found[name])]
    wrong += ["val_curve"] if not all(map(is_number, record.val_curve)) else []
    if not wrong and not all(isinstance(value, str) for value in record.made_by.values()):
        return "made_by"
    return wrong[0] if wrong else None


def finished_cells(study: Study, folder: Path) -> dict[Cell, Record]:
    """The cells that need not run again; one that was run with other settings is an error that names them.

    A cell of which only validation images were asked for is not finished when the study wants test numbers.
    """
    found = {}
    for cell in study.cells():
        path = record_path(folder, cell)
        if path.is_file():
            record = read_record(path)
            had, has = record.settings, through_json(study.values(cell))
            if differ := [key for key in sorted({*had, *has}) if had.get(key) != has.get(key)]:
                raise VitletError(
                    f"{path} was run with other settings than the study now has: {', '.join(differ)}. Remove the file"
                    " to run the cell again, or give the arm another name."
                )
            if not study.test or record.test_best is not None or record.test_asked:
                found[cell] = record
    return found


def through_json(values: Any) -> Any:
    """The values as JSON gives them back."""
    return json.loads(json.dumps(values))
