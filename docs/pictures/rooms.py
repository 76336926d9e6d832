"""Draws rooms.svg: the rooms of the source tree in their layers, and a batch's way through them.

`python docs/pictures/rooms.py [FOLDER]`; the layers are read from docs/architecture.md, so that the two cannot differ.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
ROW, LEFT, WIDTH = 44, 20, 560
WAY_LEFT, WAY_WIDTH, TOP = 640, 400, 64
INK, ROOM, LINE, WAY, SOFT = "#263238", "#e0f2f1", "#00796b", "#c2185b", "#607d8b"

BATCH = (
    ("cli/commands/train.py", "flags become a RunConfig"),
    ("training/jobs.py", "the job: data, model, objective, checked first"),
    ("training/loaders.py", "images, augmented by (seed, epoch, index)"),
    ("training/loop.py", "the step: schedules, micro-batches, clip, optimizer"),
    ("objective/objective.py", "one forward pass per view; criterion + weighted tasks"),
    ("tasks/drloc.py", "targets from token coordinates -> loss -> gradient"),
)
"""Files that a reader opens from the command to the gradient."""


def layers() -> list[tuple[list[str], str]]:
    """The rooms of each line of the layer rule, and its comment."""
    page = (HERE.parent / "architecture.md").read_text(encoding="utf-8")
    block = page.split("```text\n")[1].split("```")[0]
    found = []
    for line in block.splitlines():
        names, _, about = line.partition("  ")
        found.append((names.replace("|", " ").split(), about.strip()))
    return found


def text(x: float, y: float, words: str, *, size: int = 13, colour: str = INK, more: str = "") -> str:
    """A line of text."""
    font = f'font-family="sans-serif" font-size="{size}" fill="{colour}"'
    return f'<text x="{x}" y="{y}" {font} {more}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str) -> str:
    """A rectangle with round corners."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{stroke}"/>'


def draw_rooms(rows: list[tuple[list[str], str]]) -> list[str]:
    """A row of boxes for each layer, the highest on top."""
    parts = [text(LEFT, 36, "Rooms: each imports only from rows below", size=16, more='font-weight="bold"')]
    for number, (names, about) in enumerate(rows):
        y = TOP + number * ROW
        wide = (WIDTH - 8 * (len(names) - 1)) / len(names)
        for place, name in enumerate(names):
            x = LEFT + place * (wide + 8)
            parts.append(box(x, y, wide, ROW - 8, ROOM, LINE))
            middle = x + wide / 2
            size = 13 if wide > 90 else 10
            lift = 0 if about and len(names) < 3 else 6
            parts.append(text(middle, y + 15 + lift, name, size=size, more='text-anchor="middle" font-weight="bold"'))
        for place, words in enumerate(about.split("|") if len(names) < 3 else []):
            parts_of = (WIDTH - 8 * (len(names) - 1)) / max(1, len(about.split("|")))
            x = LEFT + place * (parts_of + 8) + parts_of / 2
            parts.append(text(x, y + 29, words.strip(), size=10, colour=SOFT, more='text-anchor="middle"'))
    return parts


def draw_way() -> list[str]:
    """The files of a batch's way, joined by arrows."""
    step = 84
    parts = [text(WAY_LEFT, 36, "The path of a batch: six files", size=16, more='font-weight="bold"')]
    for number, (file, about) in enumerate(BATCH):
        y = TOP + number * step
        parts.append(box(WAY_LEFT, y, WAY_WIDTH, 54, "#fff", WAY))
        parts.append(text(WAY_LEFT + 14, y + 23, f"{number + 1}  {file}", size=14, more='font-weight="bold"'))
        parts.append(text(WAY_LEFT + 32, y + 42, about, size=12, colour=SOFT))
        if number:
            x = WAY_LEFT + WAY_WIDTH / 2
            parts.append(
                f'<path d="M{x} {y - step + 54}V{y - 4}" stroke="{WAY}" stroke-width="2" marker-end="url(#tip)"/>'
            )
    return parts


def main() -> None:
    """Write the picture beside this file, or into the folder that is named."""
    rows = layers()
    width, height = WAY_LEFT + WAY_WIDTH + 20, TOP + max(len(rows) * ROW, 6 * 84) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        "<title>The rooms of vitlet in their layers, and the six files of a batch's way</title>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path d="M0 0L10 5L0 10z" fill="{WAY}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *draw_rooms(rows),
        *draw_way(),
        "</svg>",
    ]
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    (folder / "rooms.svg").write_text("\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
