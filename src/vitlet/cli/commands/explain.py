"""``vitlet explain``."""

from __future__ import annotations

from pathlib import Path

from vitlet.cli.flags import Parser


def run(words: list[str]) -> int:
    """Run the command."""
    parser = Parser(
        prog="vitlet explain",
        description="What a network looks at: attention by layer and head, rollout, evidence for its class, and where"
        " the run's localization head puts the tokens. What a network does not have is left out, and said.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folders; several are compared")
    parser.add_argument("--images", metavar="IMAGE", nargs="+", required=True, help="image files")
    parser.add_argument("--output", metavar="FOLDER", default="explained", help="for the pictures [explained]")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps [auto]")
    chosen = parser.parse_all(words)
    from vitlet.analysis.explain_pictures import explain_runs
    from vitlet.cli.summary import say

    runs, images = [Path(run) for run in chosen.runs], [Path(image) for image in chosen.images]
    pictures = explain_runs(runs, images, Path(chosen.output), device=chosen.device)
    for picture in pictures.written:
        say(f"picture: {picture}")
    for sentence in pictures.left_out:
        say(f"left out: {sentence}")
    return 0
