"""Which unlabelled images to label next: those that the run is uncertain about and that differ from each other."""

from __future__ import annotations

import sys
from pathlib import Path

from vitlet.cli.flags import Parser
from vitlet.errors import SkippedImagesError, VitletError

ON_POOL = """\
POOL is as IMAGE of `vitlet predict`: files, a folder (looked through to the bottom), a pattern in quotes, or - for a
list on standard input; or one zip or tar file. Images that the run's data holds already, by content, and copies inside
the pool are left out. Exit code: 0; 2 if nothing could be done; 3 if some images could not be read."""


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser("vitlet suggest", __doc__, example="vitlet suggest runs/first unlabelled -n 100", epilog=ON_POOL)
    parser.add_usual("run")
    parser.add_argument("pool", metavar="POOL", nargs="+", help="images without labels")
    parser.add_argument(
        "-n", "--count", type=int, default=100, metavar="N", help="number of images to suggest (default: 100)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed of the choice (default: 0)")
    about = "CSV file to write; a picture of the images is written beside it (default: suggested.csv)"
    parser.add_argument("--output", metavar="FILE", type=Path, default=Path("suggested.csv"), help=about)
    parser.add_argument("-b", "--batch-size", type=int, default=64, metavar="N", help="batch size (default: 64)")
    parser.add_usual("--device")
    return parser


def run(words: list[str]) -> int:
    """Run the command."""
    chosen = parser().parse_all(words)
    if chosen.count < 1 or chosen.batch_size < 1 or chosen.seed < 0:
        raise VitletError("-n and --batch-size must be 1 or more, and --seed 0 or more.")
    from vitlet.analysis.suggest import suggest
    from vitlet.cli.answer_writers import check_targets
    from vitlet.cli.image_list import pool_images
    from vitlet.cli.suggestions import choosable, write_suggestions
    from vitlet.cli.summary import say
    from vitlet.data.decode import describe_others
    from vitlet.inference.predict import Predictor
    from vitlet.pictures import printable

    check_targets(chosen.output, None)
    _refuse_place(chosen.output, chosen.pool)
    predictor = Predictor.load(Path(chosen.run), device=chosen.device)
    others: list[Path] = []
    pool = pool_images(chosen.pool, sys.stdin, others)
    for note in (*predictor.notes, *([describe_others(others)] if others else [])):
        print(f"note: {printable(note)}", file=sys.stderr)
    left = choosable(pool, predictor)
    found = suggest(predictor, pool, left.indices, chosen.count, seed=chosen.seed, batch_size=chosen.batch_size)
    picture = write_suggestions(found, pool, predictor, chosen.output)
    for each in found[:5]:
        say(f"{each.rank}: {each.image}: {each.why}")
    say(f"suggested: {len(found):,} of {len(left.indices):,} new images, {chosen.output}, picture: {picture}")
    if left.unreadable:
        skipped = f"{len(left.unreadable)} of {len(pool)} images could not be read and were passed over."
        raise SkippedImagesError(skipped)
    return 0


def _refuse_place(output: Path, pool: list[str]) -> None:
    """The picture would be an image of the pool from then on."""
    for word in pool:
        if Path(word).is_dir() and output.resolve().is_relative_to(Path(word).resolve()):
            raise VitletError(
                f"--output {output} lies in the pool {word}, whose images it would join. Choose another place."
            )
