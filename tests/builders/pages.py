"""HTML pages as a browser's parser finds them."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path


class Elements(HTMLParser):
    """Every element with its attributes, and all text, as a browser's parser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(path: Path) -> tuple[str, Elements, str]:
    text = path.read_text(encoding="utf-8")
    elements = Elements(text)
    return text, elements, " ".join(elements.text)
