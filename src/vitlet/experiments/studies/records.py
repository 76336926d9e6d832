"""What a cell of a study found, as a small file of its own that can be committed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vitlet.errors import VitletError
from vitlet.experiments.studies.definition import Cell, Study
from vitlet.training.files import sync
from vitlet.values import is_number

FORMAT = 1


@dataclass(frozen=True)
class Record:
    """The outcome of one run; accuracies in percent.

    Attributes:
        cpu_seconds: of the whole run; None where it was done in several pieces.
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
        """The file of this cell below ``folder``, whole or not at all."""
        path = record_path(folder, self.cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n", encoding="utf-8")
        sync(temporary)
        temporary.replace(path)
        return path


def records_folder(file: Path) -> Path:
    """Where a study's records and report lie: beside study.yaml; a file of another name has a folder of its name."""
    return file.parent if file.name == "study.yaml" else file.with_suffix("")


def record_path(folder: Path, cell: Cell) -> Path:
    """Where the record of a cell lies."""
    return folder / "cells" / f"{cell.name}.json"


def read_record(path: Path) -> Record:
    """A record, or a sentence on what is wrong with the file."""
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
        _check(record)
        return record
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise VitletError(f"{path} is not the result of a cell: {problem}. Remove it to run the cell again.") from None


def _check(record: Record) -> None:
    """Refuse values of other kinds than a cell writes."""
    for name in ("val_best", "test_best", "test_last", "cpu_seconds", "best_epoch", "train_images", "test_images"):
        value = getattr(record, name)
        if not is_number(value) and (value is not None or name in ("best_epoch", "train_images", "test_images")):
            raise ValueError(f"{name} is {value!r}")
    for name in ("settings", "tasks", "made_by"):
        if not isinstance(getattr(record, name), dict):
            raise ValueError(f"{name} is {getattr(record, name)!r}")
    for value in record.val_curve:
        if not is_number(value):
            raise ValueError(f"val_curve holds {value!r}")
    for name, value in record.made_by.items():
        if not isinstance(value, str):
            raise ValueError(f"{name} is {value!r}")


def finished_cells(study: Study, folder: Path) -> dict[Cell, Record]:
    """The cells that need not run again; one that was run with other settings is an error that names them.

    A cell of which only validation images were asked for is not finished when the study wants test numbers.
    """
    found = {}
    for cell in study.cells():
        path = record_path(folder, cell)
        if path.is_file():
            record = read_record(path)
            differ = list(_differing(record.settings, plain(study.values(cell))))
            if differ:
                raise VitletError(
                    f"{path} was run with other settings than the study now has: {', '.join(differ)}. Remove the file"
                    " to run the cell again, or give the arm another name."
                )
            if not study.test or record.test_best is not None or record.test_asked:
                found[cell] = record
    return found


def plain(values: Any) -> Any:
    """As JSON would give it back."""
    return json.loads(json.dumps(values))


def _differing(had: dict[str, Any], has: dict[str, Any]) -> Iterable[str]:
    return (key for key in sorted({*had, *has}) if had.get(key) != has.get(key))
