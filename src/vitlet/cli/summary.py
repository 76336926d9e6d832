"""Tables and pictures at the end of a command."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from vitlet.pictures import printable

if TYPE_CHECKING:
    from vitlet.analysis.probes import ProbeResult
    from vitlet.data.images import Dataset
    from vitlet.data.scan.findings import ScanReport
    from vitlet.models.layouts import Layout
    from vitlet.models.small_list import SmallModel
    from vitlet.models.weight_cache import WeightFile
    from vitlet.statistics import Interval
    from vitlet.tasks.declared import Option
    from vitlet.training.evaluate import Scores
    from vitlet.training.finish import RunResult
    from vitlet.training.search_folder import SearchRecord


def print_result(result: RunResult[Scores]) -> None:
    """Print a run's final scores, folder and warnings."""
    rows = {name: scores for name, scores in (("validation", result.val), ("test", result.test)) if scores is not None}
    if rows:
        table = _table("images", "top-1 %", "top-5 %", "balanced %", "loss", first="split")
        for name, scores in rows.items():
            numbers = (f"{scores.top1:.2f}", f"{scores.top5:.2f}", f"{scores.balanced:.2f}", f"{scores.loss:.3f}")
            table.add_row(name, str(scores.count), *numbers)
        Console().print(table)
    for name, value in result.tasks.items():
        say(f"{name}: {value:.3f}")
    if result.val is not None:
        say(f"best epoch on the validation images: {result.best_epoch}")
    _print_end(result)


def print_measured(result: RunResult[Any]) -> None:
    """Print the final scores of a detection or segmentation run: a row per metric."""
    splits = {name: one.to_dict() for name, one in (("validation", result.val), ("test", result.test)) if one}
    table = _table(*splits, first="number")
    for key in next(iter(splits.values()), {}):
        table.add_row(
            _cell(key), *(f"{one[key]:.0f}" if key == "count" else f"{one[key]:.2f}" for one in splits.values())
        )
    if splits:
        Console().print(table)
        say(f"best epoch on the validation images: {result.best_epoch}")
    for name, value in result.tasks.items():
        say(f"{name}: {value:.3f}")
    _print_end(result)


def _print_end(result: RunResult[Any]) -> None:
    """The data, the warnings and the place of a run."""
    if result.verdict:
        say(result.verdict)
    say(f"data: {result.note}")
    for warning in result.warnings:
        say(f"note: {warning}")
    say(f"run: {result.path}")
    if (result.path / "curves.png").is_file():
        say(f"curves: {result.path / 'curves.png'}")


def print_search(path: Path, record: SearchRecord) -> None:
    """Print the members of a search, what is used of it, and its folder."""
    table = _table("tasks", "minutes", "validation %", "weight", first="member")
    for member in record.members:
        tasks = ", ".join(f"{name}={weight:g}" for name, weight in member.tasks.items()) or "none"
        minutes, weight = (member.ended - member.began) / 60, record.weights.get(member.folder, 0.0)
        score = "diverged" if member.diverged else f"{member.val_top1:.2f}"
        numbers = (f"{minutes:.1f}", score, f"{weight:.2f}")
        table.add_row(_cell(f"{member.folder} {member.model}"), _cell(tasks), *numbers)
    Console().print(table)
    what = "the best single run" if len(record.weights) == 1 else f"an ensemble of {len(record.weights)} runs"
    say(f"used: {what}, {record.val_top1 or 0.0:.2f} % of the validation images")
    if record.test is not None:
        say(f"test: {record.test['top1']:.2f} % of {record.test['count']:.0f} images, tested once")
    say(f"time: {record.seconds / 60:.1f} of {record.minutes:g} minutes")
    say(f"search: {path}, for vitlet evaluate, predict, serve and report")
    say(f"picture: {path / 'search.png'}")


def demo_table(found: Mapping[str, Sequence[float]]) -> None:
    """Accuracy of several trainings over the same seeds, and what each is ahead of the first."""
    from vitlet.statistics import student

    table = _table("seeds", "test %", "gain in points", first="training")
    base, *_ = found.values()
    for name, values in found.items():
        gains = [value - other for value, other in zip(values, base, strict=True)]
        own, gain = ("n/a", "n/a") if len(values) < 2 else (_with_interval(student(each)) for each in (values, gains))
        table.add_row(_cell(name), str(len(values)), own, "" if values is base else gain)
    Console().print(table)
    say("Means over seeds with 95 % intervals (Student's t); gains are paired differences between equal seeds.")


def _with_interval(found: Interval) -> str:
    return f"{found.value:.2f} ± {found.high - found.value:.2f}"


def print_scores(what: str, scores: Scores) -> None:
    """Print the scores of an evaluation."""
    accuracies = f"top-1 {scores.top1:.2f} %, top-5 {scores.top5:.2f} %, balanced {scores.balanced:.2f} %"
    say(f"{what}: {scores.count} images, {accuracies}, loss {scores.loss:.3f}")


def print_probes(results: Sequence[ProbeResult]) -> None:
    """Accuracy of frozen features by the share of labels."""
    table = _table("block", "labels", "share", "kNN %", "linear %", first="features")
    for result in results:
        linear = "n/a" if result.linear is None else f"{result.linear:.2f}"
        block, share = str(result.layer or ""), f"{result.fraction:.0%}"
        table.add_row(_cell(result.features), block, str(result.labels), share, f"{result.knn:.2f}", linear)
    Console().print(table)
    if results:
        say(f"on {results[0].tested} images")


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal's error stream, nothing elsewhere; gives a function that takes how many are done."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        line = bar.add_task(what, total=total)
        yield lambda done: bar.update(line, completed=done)


def print_predictions(predictions: Sequence[Mapping[str, Any]], file: TextIO | None = None) -> None:
    """One row per image: its most likely classes; on the terminal, or into a file."""
    table = _table("class", "probability", first="image")
    for prediction in predictions:
        for rank, guess in enumerate(prediction["classes"]):
            image = _cell(prediction["image"]) if rank == 0 else ""
            table.add_row(image, _cell(guess["class"]), f"{guess['probability']:.3f}")
    Console(file=file, width=160 if file else None).print(table)


def print_tasks(tasks: Mapping[str, tuple[str, float, Mapping[str, Option]]]) -> None:
    """Each task with its suggested weight and its options."""
    for name, (summary, weight, options) in tasks.items():
        say(f"{name}: {summary} (suggested weight {weight:g})")
        table = Table("flag", "default", "meaning", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for key, option in options.items():
            default = "by preset" if option.default is None else str(option.default)
            table.add_row(f"--{name}.{key.replace('_', '-')}", default, _cell(option.help))
        Console().print(table)


def print_small_models(models: Sequence[SmallModel], measured: str) -> None:
    """The models for small images, and where their speed was measured."""
    from vitlet.models.small_list import family

    table = _table("px", "parameters", "grid", "images/s", "in bf16", first="name")
    for model in models:
        both = (model.images_per_second, model.in_bf16)
        speeds = ["not measured" if speed is None else f"{speed:.0f}" for speed in both]
        grid = f"{model.grid[0]} x {model.grid[1]}"
        table.add_row(model.name, str(model.img_size), f"{model.parameters / 1e6:.1f} M", grid, *speeds)
    Console().print(table)
    for use, alike in groupby(models, key=lambda model: model.use):  # sizes of one family share their sentence
        names = [model.name for model in alike]
        say(f"{names[0] if len(names) == 1 else family(names[0])}: {use}")
    how = (
        "images/s: training throughput, 32 images per step, one thread; in bf16: with autocast and channels-last layout"
    )
    say(f"{how} ({measured})" if measured else "images/s: not measured")


def print_weights(found: Sequence[WeightFile], layouts: Sequence[Layout]) -> None:
    """The files of weights on this machine, and the released files that are known, with source and licence."""
    table = _table("MB", "layout", "model", first="file")
    for each in found:
        unknown = ("not readable", "") if each.problem else ("unknown", "name its --model")
        known = (each.layout.name, each.layout.model) if each.layout else unknown
        table.add_row(_cell(each.path), f"{each.megabytes:.0f}", *map(_cell, known))
    if found:
        Console().print(table)
    say(f"files found: {len(found)}, in the folder and the caches of the hub and torch")
    for layout in layouts:
        say(f"{layout.name}: {layout.file}, for {layout.model} ({layout.fits} tensors fit), {layout.learned}")
        note = f"; {layout.note}" if layout.note else ""
        say(f"  {layout.source}; {layout.licence}{note}")
    usable = next((each.path for each in found if each.layout and not each.layout.differs), Path(layouts[0].file))
    say(f"to start from one: vitlet train DATA --init {shlex.quote(str(usable))}")


def scan(dataset: Dataset, *, channels: int, workers: int | None) -> ScanReport:
    """Scan with a progress bar on a terminal."""
    from vitlet.data.scan.scan import scan_dataset

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        line = bar.add_task("reading images", total=None)
        return scan_dataset(
            dataset,
            channels=channels,
            workers=workers,
            progress=lambda done, total: bar.update(line, completed=done, total=total),
        )


def print_scan(
    report: ScanReport, suggestion: Mapping[str, Any] | None, *, picture: Path | None, as_json: bool
) -> None:
    """The findings and how to train, as lines or JSON."""
    from vitlet.data.scan.findings import scan_lines

    if as_json:
        print(json.dumps(report.to_dict() | {"suggestion": suggestion}, indent=2))
        return
    for text in scan_lines(report):
        say(text)
    if suggestion is not None:
        say(f"suggestion: {suggestion['command']}")
        for text in suggestion["chosen"]:
            say(f"  {text}")
    if picture is not None:
        say(f"picture: {picture}")


def say(text: str) -> None:
    """A plain line, whatever characters it holds: none ends it, steers the terminal, or becomes a picture."""
    Console().print(printable(text), highlight=False, markup=False, emoji=False, soft_wrap=True)


def _cell(text: object) -> Text:
    """A name in a table, as it is written: no markup, no emoji, nothing that steers a terminal."""
    return Text(printable(str(text)))


def _table(*columns: str, first: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    return table
