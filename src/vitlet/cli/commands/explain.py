"""What a network looks at: attention by layer and head, rollout, class activation map, and where the run's
localization head puts the tokens. What a network does not have is left out, and said."""

from __future__ import annotations

from pathlib import Path

from vitlet.cli.flags import Parser


def run(words: list[str]) -> int:
    """Run the command."""
    parser = Parser("vitlet explain", __doc__)
    parser.add_usual("runs")
    parser.add_argument("--images", metavar="IMAGE", nargs="+", type=Path, required=True, help="image files")
    parser.add_argument(
        "--output", metavar="FOLDER", type=Path, default="explained", help="for the pictures [explained]"
    )
    parser.add_usual("--device")
    chosen = parser.parse_all(words)
    from vitlet.analysis.explain_pictures import explain_runs
    from vitlet.cli.summary import say

    pictures = explain_runs([Path(run) for run in chosen.runs], chosen.images, chosen.output, device=chosen.device)
    for picture in pictures.written:
        say(f"picture: {picture}")
    for sentence in pictures.left_out:
        say(f"left out: {sentence}")
    return 0
