"""Classes of images, most likely first."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from vitlet.cli.flags import Parser
from vitlet.errors import SkippedImagesError, VitletError

AFTER = """\
IMAGE is a file, a folder (looked through to the bottom), a pattern in quotes, or - for a list of files, one a line, on
standard input. Exit code: 0; 2 if nothing could be done; 3 if some images could not be read and were passed over."""


def run(words: list[str]) -> int:
    """Run the command."""
    parser = Parser("vitlet predict", __doc__, epilog=AFTER)
    parser.add_argument("run", metavar="RUN", help="run or export folder; several are asked together (their mean)")
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="files, folders, patterns, -")
    parser.add_argument("--topk", type=int, default=3, help="classes to name for each image [3]")
    about = "mean over mirrored views, corners, or both"
    parser.add_argument("--tta", choices=("none", "flip", "crops", "all"), default=None, help=about)
    parser.add_argument("--format", choices=("table", "csv", "json"), default="table", help="[table]")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("--output", metavar="FILE", type=Path, help="write there what would be printed")
    parser.add_argument("--embed", metavar="FILE", type=Path, help="what the classifier sees, as .npy or .parquet")
    parser.add_argument("-b", "--batch-size", type=int, default=64, help="images at a time [64]")
    parser.add_usual("--device")
    chosen = parser.parse_all(words)
    folders = [chosen.run]
    while chosen.images and _is_network(Path(chosen.images[0])):
        folders.append(chosen.images.pop(0))
    if not chosen.images:
        raise VitletError(f"no image was given beside {', '.join(folders)}. See `vitlet predict --help`.")
    if chosen.embed and len(folders) > 1:
        raise VitletError("--embed takes one RUN: embeddings of several networks have no common meaning.")
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
                print(f"passed over: {printable(answer.problem)}", file=sys.stderr)
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
        raise SkippedImagesError(f"{len(problems)} of {len(files)} images could not be read and were passed over.")
    return 0


def _is_network(path: Path) -> bool:
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
