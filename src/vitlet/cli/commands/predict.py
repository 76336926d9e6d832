"""Predict the classes of images, most likely first."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from vitlet.cli.flags import Parser
from vitlet.errors import SkippedImagesError, VitletError

AFTER = """\
IMAGE is a file, a folder (with its sub-folders), a pattern in quotes, or - for a list of files on standard input, one
per line. Exit code: 0; 2 for bad input; 3 if some images could not be read and were skipped."""


def parser() -> Parser:
    """The arguments of the command."""
    example = "vitlet predict runs/photos new/*.jpg --format csv --output answers.csv"
    parser = Parser("vitlet predict", __doc__, example=example, epilog=AFTER)
    parser.add_argument("run", metavar="RUN", help="run or export folder; several are averaged")
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="image files, folders, patterns, or -")
    parser.add_argument("--topk", type=int, default=3, metavar="N", help="number of classes per image (default: 3)")
    about = "test-time augmentation: mean over mirrored views, corner crops, or both (default: the run's)"
    parser.add_argument("--tta", choices=("none", "flip", "crops", "all"), default=None, help=about)
    parser.add_argument(
        "--format", choices=("table", "csv", "json"), default="table", help="output format (default: table)"
    )
    parser.add_argument("--json", action="store_true", help="short for --format json")
    parser.add_argument("--output", metavar="FILE", type=Path, help="file to write instead of printing")
    parser.add_argument(
        "--embed", metavar="FILE", type=Path, help="write embeddings, the classifier's inputs, as .npy or .parquet"
    )
    parser.add_argument("-b", "--batch-size", type=int, default=64, metavar="N", help="images per batch (default: 64)")
    parser.add_usual("--device")
    return parser


def run(words: list[str]) -> int:
    """Run the command."""
    chosen = parser().parse_all(words)
    folders = [chosen.run]
    while chosen.images and _is_model(Path(chosen.images[0])):
        folders.append(chosen.images.pop(0))
    if not chosen.images:
        raise VitletError(f"no image was given after {', '.join(folders)}. See `vitlet predict --help`.")
    if chosen.embed and len(folders) > 1:
        raise VitletError("--embed takes one RUN: embeddings of several models cannot be averaged.")
    from vitlet.cli.answer_writers import as_csv, as_json, check_targets, write_embeddings
    from vitlet.cli.image_list import image_files
    from vitlet.cli.summary import print_predictions, progress_bar
    from vitlet.data.decode import describe_others
    from vitlet.inference.ensemble import Answer, Ensemble, classify
    from vitlet.inference.predict import check_topk
    from vitlet.pictures import printable

    check_targets(chosen.output, chosen.embed)
    check_topk(chosen.topk)
    ensemble = Ensemble.load([Path(folder) for folder in folders], augment=chosen.tta, device=chosen.device)
    others: list[Path] = []
    files = image_files(chosen.images, sys.stdin, others)
    for note in (*ensemble.notes, *([describe_others(others)] if others else [])):
        print(f"note: {printable(note)}", file=sys.stderr)
    answers: list[Answer] = []
    problems: list[Answer] = []
    with progress_bar("images", len(files)) as progress:
        for answer in classify(ensemble, files, topk=chosen.topk, batch_size=chosen.batch_size, progress=progress):
            (problems if answer.problem else answers).append(answer)
            if answer.problem:
                print(f"skipped: {printable(answer.problem)}", file=sys.stderr)
    if not answers:
        raise VitletError(f"none of {len(problems)} images could be read; the first: {problems[0].problem}")
    if chosen.embed:
        write_embeddings(answers, chosen.embed)
    form, text = "json" if chosen.json else chosen.format, io.StringIO()
    if form == "table":
        plain = [{"image": each.image, "classes": each.classes} for each in answers]
        print_predictions(plain, text if chosen.output else None)
    else:
        text.write(as_json(answers) if form == "json" else as_csv(answers))
    _write(text.getvalue(), chosen.output)
    if problems:
        raise SkippedImagesError(f"{len(problems)} of {len(files)} images could not be read and were skipped.")
    return 0


def _is_model(path: Path) -> bool:
    """Whether a word among the images is one more run or export."""
    return any((path / name).is_file() for name in ("config.yaml", "vitlet.json", "search.json"))


def _write(text: str, output: Path | None) -> None:
    text = text.encode("utf-8", "backslashreplace").decode()  # names of files need not be UTF-8
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise VitletError(f"cannot write {output}: {problem.strerror}.") from problem
