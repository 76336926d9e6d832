"""The list of suggested images as files, and the labelled images that a pool is compared with."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitlet.analysis.suggest import Suggestion
from vitlet.cli.answer_writers import inert
from vitlet.cli.summary import progress_bar, say
from vitlet.data.images import Dataset, ImageSet, Subset
from vitlet.data.scan.contact_sheet import picture_grid
from vitlet.data.scan.overlap import NewImages, new_images
from vitlet.data.shards import ShardStream
from vitlet.data.sources import load_dataset
from vitlet.errors import VitletError, first_line
from vitlet.inference.exported import is_export
from vitlet.inference.predict import Predictor
from vitlet.pictures import printable
from vitlet.training.files import write_atomically
from vitlet.training.inputs import data_request

COLUMNS = ("rank", "image", "predicted", "probability", "margin", "stands_for", "why")


def labelled_images(predictor: Predictor) -> tuple[dict[str, ImageSet], list[str]]:
    """All splits of the run's data, and a note where they are not available for comparison."""
    unknown = "so images of the pool that have labels already are not left out"
    if predictor.source is not None and is_export(predictor.source):
        return {}, [f"{predictor.source} is an export and knows no data of its own, {unknown}."]
    try:
        splits = load_dataset(data_request(predictor.config)).splits()
    except VitletError as problem:
        return {}, [f"the data of the run cannot be read ({first_line(problem)}), {unknown}."]
    streams = [name for name, images in splits.items() if isinstance(images, ShardStream)]
    notes = [f"the {name} images are a stream, {unknown}." for name in streams]
    return {name: images for name, images in splits.items() if name not in streams}, notes


def choosable(pool: ImageSet, predictor: Predictor) -> NewImages:
    """The images of a pool that are new and readable; what is left out is printed."""
    labelled, missing = labelled_images(predictor)
    for note in missing:
        print(f"note: {printable(note)}", file=sys.stderr)
    with progress_bar("images", len(pool) + sum(map(len, labelled.values()))) as progress:
        left = new_images(pool, labelled, predictor.config.in_chans, progress=lambda done, _: progress(done))
    for index, problem in left.unreadable:
        print(f"passed over: {printable(pool.name(index))}: {printable(problem)}", file=sys.stderr)
    if left.known:
        say(f"left out, for the run's data holds them: {len(left.known):,} of {len(pool):,} images of the pool")
    if left.repeated:
        say(f"left out, for they are copies inside the pool: {len(left.repeated):,} of {len(pool):,} images")
    if not left.indices:
        raise VitletError(f"none of the {len(pool):,} images of the pool is new and readable; add others.")
    return left


@dataclass(frozen=True)
class _Guessed(Subset):
    """Suggested images in their order, each with its predicted class as label."""

    guesses: tuple[int, ...] = field(default=())

    @property
    def labels(self) -> list[int]:
        return list(self.guesses)


def write_suggestions(found: Sequence[Suggestion], pool: ImageSet, predictor: Predictor, output: Path) -> Path:
    """Write the list as CSV, and beside it a sheet of the images, a row for each predicted class; returns its path."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for each in found:
        numbers = (f"{each.probability:.6f}", f"{each.margin:.6f}", each.stands_for)
        writer.writerow([each.rank, inert(each.image), inert(each.predicted), *numbers, inert(each.why)])
    names = sorted({each.predicted for each in found}, key=predictor.classes.index)
    guesses = tuple(names.index(each.predicted) for each in found)
    images = _Guessed(pool, tuple(each.index for each in found), guesses)
    picture = output.with_suffix(".png")
    try:
        write_atomically(output, text.getvalue().encode("utf-8", "backslashreplace").decode())
    except OSError as problem:
        raise VitletError(f"cannot write {output}: {problem.strerror}. Choose another --output.") from problem
    sheet = Dataset(tuple(names), images, None, None, "")
    picture_grid(sheet, picture, channels=predictor.config.in_chans, what="images to label, by predicted class")
    return picture
