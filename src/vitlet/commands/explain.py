"""``vitlet explain``."""

from __future__ import annotations

from pathlib import Path

from vitlet.flags import Parser


def run(words: list[str]) -> int:
    """Run the command."""
    parser = Parser(prog="vitlet explain", description="Attention by layer and head, rollout, and how far it reaches.")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folders; several are compared")
    parser.add_argument("--images", metavar="IMAGE", nargs="+", required=True, help="image files")
    parser.add_argument("--output", metavar="FOLDER", default="explained", help="for the pictures [explained]")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps [auto]")
    chosen = parser.parse_all(words)
    from vitlet.explain import explain_runs
    from vitlet.summary import say

    runs, images = [Path(run) for run in chosen.runs], [Path(image) for image in chosen.images]
    for picture in explain_runs(runs, images, Path(chosen.output), device=chosen.device):
        say(f"picture: {picture}")
    return 0
