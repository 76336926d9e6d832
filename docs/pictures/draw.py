"""Draws the picture of each task's idea beside this file: `python docs/pictures/draw.py [FOLDER]`.

A scan of a handwritten digit, cut into a grid of tokens; what is asked is drawn over it.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from sklearn.datasets import load_digits

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
CELL, CELLS = 46, 4
SIDE = CELL * CELLS
ASK, GIVEN, SOFT = "#00796b", "#c2185b", "#b2dfdb"
TEXT = 'font-family="sans-serif" font-size="13" fill="#333"'


def scan(number: int = 3, *, turns: int = 0, order: list[int] | None = None) -> str:
    """The digit as pixels under a grid of 4 x 4 tokens, turned, or with its patches in another order."""
    pixels = load_digits().images[number]
    parts = [f'<rect width="{SIDE}" height="{SIDE}" fill="#fff"/>']
    half = CELL / 2
    for row in range(8):
        for column in range(8):
            value, y, x = pixels[row][column], row, column
            for _ in range(turns):
                y, x = 7 - x, y
            if order is not None:
                place = order.index((y // 2) * CELLS + x // 2)
                y, x = place // CELLS * 2 + y % 2, place % CELLS * 2 + x % 2
            grey = 255 - int(value * 11)
            parts.append(
                f'<rect x="{x * half}" y="{y * half}" width="{half}" height="{half}" fill="rgb({grey},{grey},{grey})"/>'
            )
    for line in range(CELLS + 1):
        at = line * CELL
        parts.append(f'<path d="M{at} 0V{SIDE}M0 {at}H{SIDE}" stroke="#90a4ae" stroke-width="1" fill="none"/>')
    return "".join(parts)


def centre(cell: int) -> tuple[float, float]:
    """Pixels of the middle of a cell."""
    return (cell % CELLS + 0.5) * CELL, (cell // CELLS + 0.5) * CELL


def box(cell: int, colour: str = ASK, fill: str = "none") -> str:
    """A frame around a cell."""
    x, y = centre(cell)
    return (
        f'<rect x="{x - CELL / 2 + 2}" y="{y - CELL / 2 + 2}" width="{CELL - 4}" height="{CELL - 4}" fill="{fill}"'
        f' fill-opacity="0.35" stroke="{colour}" stroke-width="3"/>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str = ASK) -> str:
    """A line with a head."""
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="2.5" marker-end="url(#head)"/>'
    )


def words(x: float, y: float, text: str) -> str:
    """A caption, centred."""
    return f'<text x="{x}" y="{y}" text-anchor="middle" {TEXT}>{text}</text>'


def panels(name: str, drawings: list[tuple[str, str]], about: str) -> None:
    """Drawings beside each other, each with its caption, as one SVG file."""
    gap, top = 40, 12
    width = len(drawings) * SIDE + (len(drawings) + 1) * gap
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {SIDE + 50}" width="{width}" role="img">',
        f"<title>{about}</title>",
        '<defs><marker id="head" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="6" markerHeight="6"'
        f' orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{ASK}"/></marker></defs>',
        f'<rect width="{width}" height="{SIDE + 50}" fill="#fff"/>',
    ]
    for number, (drawing, caption) in enumerate(drawings):
        left = gap + number * (SIDE + gap)
        parts.append(f'<g transform="translate({left} {top})">{drawing}</g>')
        parts.append(words(left + SIDE / 2, SIDE + 36, caption))
    text = "".join([*parts, "</svg>\n"])
    (FOLDER / f"{name}.svg").write_text(text, encoding="utf-8")


def pair(first: int, second: int) -> str:
    """Two framed cells and an arrow from the second to the first."""
    return box(first) + box(second, GIVEN) + arrow(*centre(second), *centre(first))


def drloc() -> None:
    """Offsets of a few random pairs."""
    panels(
        "drloc",
        [
            (scan() + pair(2, 9), "2 rows up, 1 column right"),
            (scan() + pair(12, 7), "2 rows down, 3 columns left"),
            (scan() + pair(15, 13), "level, 2 columns right"),
        ],
        "Pairs of tokens, and the offset that the head has to tell",
    )


def relvit() -> None:
    """Relation, distance, angle, position."""
    arms = "".join(arrow(*centre(9), *centre(cell)) for cell in (4, 5, 6, 8, 10, 12, 13, 14))
    start = (CELL - SIDE) / 2  # half a side up and left of the first token
    rays = arrow(start, start, *centre(1)) + arrow(start, start, *centre(8))
    shrunk = f'<g transform="scale({SIDE / (SIDE - start):.3f}) translate({-start} {-start})">'
    length = f"{math.hypot(2, 3):.1f}"
    numbers = "".join(words(*centre(cell), str(cell)) for cell in range(16))
    panels(
        "relvit",
        [
            (scan() + box(9, GIVEN) + arms, "sprel: nine directions"),
            (scan() + pair(3, 8), f"distance: {length} cells"),
            (shrunk + scan() + box(1) + box(8) + rays + "</g>", "angle between two tokens"),
            (scan() + numbers + box(6), "position: which cell"),
        ],
        "What the four tasks ask of tokens",
    )


def jigsaw() -> None:
    """Patches in disorder, and every one back in a cell of its own."""
    order = [5, 0, 10, 3, 12, 1, 15, 8, 2, 14, 6, 9, 4, 13, 7, 11]
    moves = "".join(arrow(*centre(place), *centre(order[place])) for place in (0, 4, 6, 9))
    panels(
        "jigsaw",
        [
            (scan(order=order), "patches in disorder"),
            (scan(order=order) + moves, "every token to a cell of its own"),
            (scan(), "solved"),
        ],
        "A jigsaw over the token grid",
    )


def attention() -> None:
    """Prices by distance, and by likeness."""
    far, unlike = [], []
    pixels = load_digits().images[3]
    look = [pixels[row // 4 * 2 : row // 4 * 2 + 2, row % 4 * 2 : row % 4 * 2 + 2].mean() for row in range(16)]
    for cell in range(16):
        x, y = centre(cell)
        distance = abs(cell // 4 - 1) + abs(cell % 4 - 1)
        for prices, price in ((far, distance / 4), (unlike, abs(look[cell] - look[5]) / 16)):
            prices.append(
                f'<rect x="{x - CELL / 2}" y="{y - CELL / 2}" width="{CELL}" height="{CELL}" fill="{GIVEN}"'
                f' fill-opacity="{0.75 * min(1.0, price):.2f}"/>'
            )
    panels(
        "attention",
        [
            (scan() + "".join(far) + box(5), "attention-distance: far costs"),
            (scan() + "".join(unlike) + box(5), "attention-similarity: unlike costs"),
        ],
        "The price of attending from the framed patch to each other one: the redder, the dearer",
    )


def rotation() -> None:
    """Quarter turns."""
    panels(
        "rotation",
        [(scan(turns=turns), f"{turns} quarter{'' if turns == 1 else 's'}") for turns in range(4)],
        "By how many quarters was the image turned?",
    )


if __name__ == "__main__":
    for draw in (drloc, relvit, jigsaw, attention, rotation):
        draw()
