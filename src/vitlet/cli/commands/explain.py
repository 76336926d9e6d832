"""Draw what a model looks at: attention maps by layer and head, attention rollout, the class activation map, and the
positions that the run's localization head predicts. What a model does not have is left out, with a message."""

from __future__ import annotations

from pathlib import Path

from vitlet.cli.flags import Parser


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser("vitlet explain", __doc__, example="vitlet explain runs/photos --images cat.jpg dog.jpg")
    parser.add_usual("runs")
    parser.add_argument("--images", metavar="IMAGE", nargs="+", type=Path, required=True, help="image files")
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        type=Path,
        default="explained",
        help="folder for the pictures (default: explained)",
    )
    parser.add_usual("--device")
    return parser


def run(words: list[str]) -> int:
    """Run the command."""
    chosen = parser().parse_all(words)
    from vitlet.analysis.explain_pictures import explain_runs
    from vitlet.cli.summary import say

    pictures = explain_runs([Path(run) for run in chosen.runs], chosen.images, chosen.output, device=chosen.device)
    for picture in pictures.written:
        say(f"picture: {picture}")
    for sentence in pictures.left_out:
        say(f"left out: {sentence}")
    return 0
