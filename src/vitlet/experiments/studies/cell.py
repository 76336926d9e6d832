"""One cell of a study, in a process of its own: train, test once, and write what was found.

``python -m vitlet.experiments.studies.cell STUDY CELL --work FOLDER --output FOLDER`` is how a study starts it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitlet.config import RunConfig
from vitlet.data.named.official import OFFICIAL
from vitlet.errors import VitletError, fail
from vitlet.experiments.studies.definition import Cell, Study, read_study
from vitlet.experiments.studies.records import Record, through_json
from vitlet.processes import end_with_launcher, keep_freed_memory

if TYPE_CHECKING:
    from vitlet.training.evaluate import Scores


def located(values: dict[str, Any], data_dir: Path | None) -> dict[str, Any]:
    """Settings with ``data`` and ``init`` found in the data folder; a dataset's name stays one, read from there."""
    if data_dir is None:
        return values
    places = {key: data_dir / str(values[key]) for key in ("data", "init") if key in values}
    found: dict[str, Any] = {key: str(place) for key, place in places.items() if place.exists()}
    if values.get("data") in OFFICIAL or "data" not in found:
        found = {**found, "data": values.get("data", "digits"), "data_dir": str(data_dir)}
    return {**values, **found}


def run_cell(study: Study, cell: Cell, work: Path, data_dir: Path | None) -> Record:
    """Train a cell, after its pre-training if it has one; both are resumed if they were interrupted."""
    import torch

    from vitlet.training.clock import Stopwatch
    from vitlet.training.loop import train
    from vitlet.training.run_folder import read_rows

    torch.set_num_threads(1)
    started, values = time.process_time(), study.values(cell)
    settings, first = dict(values), values.pop("first", None)
    config = RunConfig.from_dict(located(values, data_dir), source=cell.name)
    _keep_runs_of(settings, work)
    continued = any((work / name / "config.yaml").is_file() for name in ("first", "run"))
    if first is not None:
        before = RunConfig.from_dict(located(first, data_dir), source=f"{cell.name}, first")
        train(replace(before, output=str(work / "first"), resume="auto"), title=f"{cell.name} first")
        config = replace(config, init=str(work / "first"))
    watch = Stopwatch.of_process()  # imports and loading belong to a budget
    result = train(replace(config, output=str(work / "run"), resume="auto"), title=cell.name, watch=watch)
    rows, curve = read_rows(result.path), "test/top1" if config.eval_on_test and study.test else "val/top1"
    tested = result.test if study.test else None
    last = tested if tested is None or result.best_epoch == len(rows) else _test_last(result.path)
    return Record(
        cell=cell,
        settings=through_json(settings),
        val_curve=tuple(round(row[curve], 3) for row in rows if curve in row),
        best_epoch=result.best_epoch,
        val_best=result.val.top1 if result.val else None,
        test_best=tested.top1 if tested else None,
        test_last=last.top1 if last else None,
        tasks=result.tasks,
        train_images=_training_images(result.path),
        test_images=tested.count if tested else 0,
        cpu_seconds=None if continued else round(time.process_time() - started, 1),
        made_by=_made_by(),
        test_asked=study.test,
    )


def _keep_runs_of(settings: dict[str, Any], work: Path) -> None:
    """Remove what a cell of other settings left in this place; what these settings began is continued."""
    from vitlet.training.run_folder import RunFolder

    file, text = work / "settings.json", json.dumps(settings, indent=1, sort_keys=True)
    before = file.read_text(encoding="utf-8") if file.is_file() else None
    if before == text:
        return
    for path in (work / "first", work / "run") if before is not None else ():
        if path.is_dir():
            run = RunFolder.reopen(path)  # locked: it may be in use
            run.empty()
            run.close()
    work.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _test_last(path: Path) -> Scores:
    """Test scores of the weights of the last epoch."""
    from vitlet.inference.predict import Predictor
    from vitlet.models.factory import load_exported

    best = Predictor.load(path)
    last = Predictor(load_exported(path / "last"), best.preprocess, best.classes, best.config, best.device)
    return last.evaluate(split="test")[0]


def _training_images(path: Path) -> int:
    """How many images the run learned from, by its own newest checkpoint."""
    manifests = sorted((path / "checkpoints").glob("*/manifest.json"))
    return int(json.loads(manifests[-1].read_text(encoding="utf-8"))["images"]) if manifests else 0


def _made_by() -> dict[str, str]:
    import torch

    from vitlet import __version__

    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if sys.platform == "linux" else []
    names = [line.split(": ")[1] for line in lines if line.startswith("model name")]
    return {
        "vitlet": __version__,
        "torch": torch.__version__,
        "processor": names[0] if names else platform.processor(),
        "date": str(datetime.date.today()),
    }


def run_named_cell(file: Path, name: str, *, work: Path, output: Path, data_dir: Path | None) -> None:
    """Run the cell of that name of a study's YAML file, and write its record below ``output``."""
    study = read_study(file)
    cell = next(cell for cell in study.cells() if cell.name == name)
    run_cell(study, cell, work, data_dir).write(output)


def run_process() -> int:
    """Run the cell that the command line names; the exit code is that of `vitlet train`."""
    end_with_launcher()
    keep_freed_memory()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, help="its YAML file")
    parser.add_argument("cell", help="such as cifar10/vit/drloc/seed-0")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    chosen = vars(parser.parse_args())
    try:
        run_named_cell(chosen.pop("study"), chosen.pop("cell"), **chosen)
    except VitletError as problem:
        return fail(problem)
    return 0


if __name__ == "__main__":
    sys.exit(run_process())
