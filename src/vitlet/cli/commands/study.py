"""Run a grid of runs over datasets, models, arms and seeds; started again, it continues."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitlet.cli.flags import Parser
from vitlet.errors import VitletError
from vitlet.processes import usable_cores

if TYPE_CHECKING:
    import argparse

    from vitlet.experiments.studies.definition import Cell, Study
    from vitlet.experiments.studies.paths import StudyPaths
    from vitlet.experiments.studies.ray_engine import RayEngine
    from vitlet.experiments.studies.scheduler import LocalEngine


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser("vitlet study", __doc__, example="vitlet study drloc_table4 --recipe-size small --seeds 3")
    parser.add_argument("study", metavar="STUDY", help="YAML file, folder with study.yaml, or a table of the papers")
    sizes = ("full", "small")
    parser.add_argument(
        "--recipe-size", "--scale", dest="scale", choices=sizes, help="size of a table's recipes (default: full)"
    )
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="number of seeds of a table (default: the paper's, else 3)"
    )
    parser.add_argument("--data-dir", metavar="DIR", type=Path, help="folder of the datasets")
    about = "folder of the results (default: beside the study's file)"
    parser.add_argument("--output", metavar="FOLDER", type=Path, help=about)
    work = "runs/studies"
    parser.add_argument(
        "--work", metavar="FOLDER", type=Path, default=work, help=f"folder of the runs (default: {work})"
    )
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="where cells are run (default: local)"
    )
    parser.add_argument("--address", help="address of the Ray cluster (default: this machine)")
    parser.add_argument("--processes", type=int, metavar="N", help="cells run in parallel (default: one per core)")
    parser.add_argument("--only", metavar="TEXT", default="", help="run only the cells whose name contains this")
    parser.add_argument("--list", action="store_true", help="list the cells that would be run")
    return parser


def run(words: list[str]) -> int:
    """Run the command; returns 1 if a cell failed or cannot run."""
    chosen = parser().parse_all(words)
    from vitlet.experiments.studies.named import find_study
    from vitlet.experiments.studies.paths import StudyPaths, alone
    from vitlet.experiments.studies.records import records_folder

    study, file = find_study(chosen.study, scale=chosen.scale, seeds=chosen.seeds, write=not chosen.list)
    place = StudyPaths(file, chosen.output or records_folder(file), chosen.work / study.name, chosen.data_dir)
    with nullcontext() if chosen.list else alone(place.work):
        return _run(study, place, chosen)


def _run(study: Study, place: StudyPaths, chosen: argparse.Namespace) -> int:
    from vitlet.experiments.studies.records import finished_cells
    from vitlet.experiments.studies.scheduler import run_study
    from vitlet.experiments.studies.table import Board

    done = finished_cells(study, place.output)
    cells = [cell for cell in study.cells() if cell not in done and chosen.only in cell.name]
    with Board(study, place.work, len(done)) as board:
        board.say(f"{study.title}: {len(done)} cells are done, {len(cells)} to run; runs in {place.work}")
        if chosen.list:
            for cell in cells:
                board.say(cell.name)
            return 0
        reported = _reported(place)
        absent = _absent(study, cells, place)
        for (dataset, reason), count in Counter((cell.dataset, why) for cell, why in absent.items()).items():
            board.say(f"{count} cells of {dataset} cannot run: {reason}")
        cells = [cell for cell in cells if cell not in absent]
        progress = run_study(study, cells, _engine(chosen, place), board.show)
    for cell, reason in progress.failed.items():
        board.say(f"failed: {cell.name}: {reason}")
    records = finished_cells(study, place.output)
    if records:
        from vitlet.experiments.studies.report import print_rows, which_numbers
        from vitlet.experiments.studies.statistics import summarise

        board.say(f"{which_numbers(study, records)}:")
        print_rows(summarise(study, records))
        board.say(f"page, tables and pictures: vitlet report {reported}")
    return 1 if progress.failed or absent else 0


def _engine(chosen: argparse.Namespace, place: StudyPaths) -> LocalEngine | RayEngine:
    if chosen.processes is not None and chosen.processes < 1:
        raise VitletError(f"--processes must be at least 1, got {chosen.processes}.")
    if chosen.address and chosen.engine != "ray":
        raise VitletError("--address is of a Ray cluster; add --engine ray.")
    if chosen.engine == "ray":
        from vitlet.experiments.studies.ray_engine import RayEngine

        return RayEngine(place, address=chosen.address, processes=chosen.processes)
    from vitlet.experiments.studies.scheduler import LocalEngine

    return LocalEngine(place, chosen.processes or usable_cores())


def _reported(place: StudyPaths) -> Path:
    """The folder to pass to `vitlet report`; a work folder elsewhere holds a copy of the study's file."""
    from vitlet.experiments.studies.records import records_folder

    try:
        place.output.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise VitletError(f"{place.output} cannot be the folder of the records: {problem.strerror}.") from problem
    if place.output.resolve() == records_folder(place.file).resolve():
        return place.file.parent if place.file.name == "study.yaml" else place.file
    copy, head = place.output / "study.yaml", "# A copy that `vitlet study --output` made of "
    if copy.is_file() and not copy.read_text(encoding="utf-8").startswith(head):
        raise VitletError(f"--output {place.output} is the folder of another study; choose one without study.yaml.")
    copy.write_text(f"{head}{place.file}\n{place.file.read_text(encoding='utf-8')}", encoding="utf-8")
    return place.output


def _absent(study: Study, cells: list[Cell], place: StudyPaths) -> dict[Cell, str]:
    """The cells whose data is not there, each with the reason."""
    from vitlet.config import RunConfig
    from vitlet.experiments.studies.cell import located
    from vitlet.training.inputs import data_request
    from vitlet.training.jobs import job_class

    def why_absent(config: RunConfig) -> str | None:
        try:
            job_class(config).load_data(config)
        except VitletError as problem:
            return str(problem)
        return None

    reasons: dict[Any, str | None] = {}
    found = {}
    for cell in cells:
        values = study.values(cell)
        for phase in filter(None, (values.pop("first", None), values)):
            config = RunConfig.from_dict(located(phase, place.data_dir))
            config = replace(config, seed=study.seeds[0])
            key = data_request(config), job_class(config)
            if key not in reasons:
                reasons[key] = why_absent(config)
            if reason := reasons[key]:
                found[cell] = reason
    return found
