"""For the site: links to files beside the pages, such as examples and tables of results, become plain names.

The pages are read in the repository too, where these links work; tests/test_docs.py checks that they do.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Take links out of the site off a page."""
    folder = (DOCS / page.file.src_uri).parent

    def inside(match: re.Match[str]) -> str:
        words, target = match.groups()
        if re.match(r"\w+:|#", target):
            return match.group()
        path = (folder / target.partition("#")[0]).resolve()
        return match.group() if path.is_relative_to(DOCS) else words

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", inside, markdown)
