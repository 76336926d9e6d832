"""HTML and SVG as text: whatever is not markup of ours is escaped, so that no name or path becomes markup."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from PIL import Image


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | int | float | None


def escaped(text: object) -> Markup:
    """Text for an element or an attribute; bytes of file names that are no text are replaced."""
    if isinstance(text, Markup):
        return text
    shown = str(text).encode("utf-8", "replace").decode("utf-8")
    shown = "".join(sign if sign.isprintable() or sign in " \n" else "\N{REPLACEMENT CHARACTER}" for sign in shown)
    return Markup(html.escape(shown, quote=True))


def tag(name: str, *children: Child, **attributes: object) -> Markup:
    """One element, such as ``tag("td", "3", class_="number")``; attributes that are None are left out.

    A trailing underscore is dropped, other underscores in names of attributes become dashes.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(escaped(child) for child in children if child is not None)
    return Markup(f"<{name}{written}>{inside}</{name}>")


def joined(parts: Iterable[Markup]) -> Markup:
    """One after another."""
    return Markup("".join(parts))


def name_of(text: object, *, most: int = 200) -> Markup:
    """A name that a user chose: set apart, so that its direction of writing stays its own; long ones are cut."""
    shown = str(text)
    return tag("bdi", shown if len(shown) <= most else shown[: most - 1] + "…")


def table(
    head: Sequence[Child], rows: Iterable[Sequence[Child]], *, numbers: Iterable[int] = (), sortable: bool = True
) -> Markup:
    """A table that scrolls by itself where it is too wide, and whose columns sort when their heads are clicked.

    Args:
        head: titles of the columns.
        rows: cells; a cell ``tag("td", ..., data_sort=...)`` sorts by that value.
        numbers: columns that are set to the right.
        sortable: whether the heads are buttons.
    """
    right = set(numbers)
    kinds = ["number" if index in right else None for index in range(len(head))]
    titles = [tag("button", title, type="button") if sortable else title for title in head]
    cells = [tag("th", title, class_=kind, scope="col") for title, kind in zip(titles, kinds, strict=True)]
    body = []
    for row in rows:
        wrapped = (
            cell if isinstance(cell, Markup) and cell.startswith("<td") else tag("td", cell, class_=kind)
            for cell, kind in zip(row, kinds, strict=True)
        )
        body.append(tag("tr", *wrapped))
    whole = tag("table", tag("thead", tag("tr", *cells)), tag("tbody", *body), class_="sortable" if sortable else None)
    return tag("div", whole, class_="wide", tabindex="0")


def number_cell(value: float | None, shown: str) -> Markup:
    """A cell with a number that sorts by its value; missing ones sort last."""
    return tag("td", shown, class_="number", data_sort="" if value is None else f"{value:.10g}")


def data_uri(picture: Image.Image, *, lossless: bool = False) -> str:
    """A picture inside the page."""
    content = io.BytesIO()
    picture.save(content, format="WEBP", quality=82, lossless=lossless)
    return "data:image/webp;base64," + base64.b64encode(content.getvalue()).decode("ascii")


def picture_of(pixels: Any, side: int) -> Image.Image:
    """Pixels ``(height, width, 3)`` in 0..1 as a picture whose longer side is ``side``; small ones stay sharp."""
    picture = Image.fromarray((np.clip(pixels, 0, 1) * 255).round().astype(np.uint8))
    scale = side / max(picture.size)
    method = Image.Resampling.NEAREST if scale >= 4 else Image.Resampling.LANCZOS
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, method)


def image(source: str, alt: str, *, width: int, height: int) -> Markup:
    """An ``img`` element."""
    text = f'<img src="{escaped(source)}" alt="{escaped(alt)}" width="{width}" height="{height}">'
    return Markup(text)
