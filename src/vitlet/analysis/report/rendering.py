"""Templates of the report: what is not markup of ours is escaped, so that no name or path becomes markup."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from vitlet.pictures.pixels import data_uri


class Number(NamedTuple):
    """Table cell that sorts by its value; None sorts last. ``small`` is shown after it."""

    value: float | None
    shown: str
    small: str = ""


class Keyed(NamedTuple):
    """A cell with a run's name behind its colour."""

    colour: int
    name: str


class Picture(NamedTuple):
    """An image inside the page."""

    source: str
    alt: str
    width: int
    height: int


def picture(image: Image.Image, alt: str, *, lossless: bool = False) -> Picture:
    """An image as the page holds it."""
    return Picture(data_uri(image, lossless=lossless), alt, image.width, image.height)


def number(value: float | None, form: str = ".1f", missing: str = "–") -> Number:
    """A cell with a number in this format."""
    return Number(value, missing if value is None else format(value, form))


def legible(value: Any) -> Any:
    """Text whose signs can all be shown: bytes of file names that are no text, and control signs, are replaced."""
    if hasattr(value, "__html__"):  # markup of ours, whose text went through here
        return value
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return "".join(sign if sign.isprintable() or sign in " \n" else "\N{REPLACEMENT CHARACTER}" for sign in text)


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("vitlet.analysis.report"),
        autoescape=True,
        finalize=legible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> Markup:
    """Fill a template of this package."""
    return Markup(_templates().get_template(template).render(**values))
