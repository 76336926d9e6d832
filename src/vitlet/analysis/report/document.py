"""The HTML file of a report: sections, style and script in one page that loads nothing. Does not import torch."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from vitlet import __version__
from vitlet.analysis.report.rendering import render
from vitlet.errors import VitletError, first_line
from vitlet.training.files import write_atomically


class Section(NamedTuple):
    """A part of the page: its template is filled with its data, and left out if there is none.

    Two neighbours that are ``half`` as wide as the page stand side by side where the screen is wide enough.
    """

    title: str
    template: str
    data: Any
    half: bool = False


def write_page(path: Path, title: str, sections: Sequence[Section], *, several: bool = False) -> None:
    """Write the file atomically; nothing but its own script runs in it.

    Args:
        path: path of the HTML file.
        title: title of the page.
        sections: in their order.
        several: whether the sections are about more than one run, and have to name them.
    """
    folder = files("vitlet.analysis.report") / "templates"
    style, script = (Markup((folder / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    text = render(
        "page.html",
        title=title,
        sections=[section for section in sections if section.data],
        style=style,
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
        several=several,
        made=f"vitlet {__version__}, {datetime.now().astimezone():%Y-%m-%d %H:%M}",
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as problem:
        raise VitletError(f"cannot write {path}: {first_line(problem)}. Choose another --output.") from problem
