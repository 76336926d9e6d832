"""For the site: links to files beside the pages, such as examples and tables of results, become plain names.

The pages are read in the repository too, where these links work; tests/test_docs.py checks that they do. What lists
tasks is filled in from the registry and from the cards, so that a new task touches no list.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent


def cards() -> dict[str, list[list[str]]]:
    """The cards in the order of their tasks: file -> the rows of the table under its title, task names first."""
    from vitlet.tasks.registry import BUILT_IN

    found = {}
    for path in (DOCS / "tasks").glob("*.md"):
        rows = re.findall(r"^\| (`.*) \|$", path.read_text(encoding="utf-8").partition("\n## ")[0], re.MULTILINE)
        if path.name != "index.md":
            found[path.name] = [row.split(" | ") for row in rows]
    order = list(BUILT_IN)
    return dict(sorted(found.items(), key=lambda card: min(order.index(name) for name in named(card[1]))))


def named(rows: list[list[str]]) -> list[str]:
    """The tasks of a card."""
    return [name for row in rows for name in re.findall(r"`([\w-]+)`", row[0])]


def filled(markdown: str) -> str:
    """A page with the lists of tasks, functions and cards in place of their comments."""
    from vitlet import functional
    from vitlet.tasks.registry import PUBLIC_TASKS

    table = ["| task | asks | needs | heads |", "|---|---|---|---|"]
    for card, rows in cards().items():
        table += [f"| [{row[0]}]({card}) | {' | '.join(row[1:])} |" for row in rows]
    functions = [getattr(functional, name) for name in functional.__all__]
    lists = {
        "task": [f"::: {module}.{name}" for name, module in PUBLIC_TASKS.items()],
        "function": [f"::: {function.__module__}.{function.__name__}" for function in functions],
        "card": table,
    }
    return re.sub(r"<!-- each (\w+).*-->", lambda match: "\n".join(lists[match[1]]), markdown)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Fill in the lists of tasks, and take links out of the site off a page."""
    markdown, folder = filled(markdown), (DOCS / page.file.src_uri).parent

    def inside(match: re.Match[str]) -> str:
        words, target = match.groups()
        if re.match(r"\w+:|#", target):
            return match.group()
        path = (folder / target.partition("#")[0]).resolve()
        return match.group() if path.is_relative_to(DOCS) else words

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", inside, markdown)


def on_config(config: Any) -> Any:
    """Put the cards into the navigation, behind the page that compares them."""
    tasks = next(section["Tasks"] for section in config["nav"] if "Tasks" in section)
    tasks[1:1] = [{", ".join(named(rows)): f"tasks/{card}"} for card, rows in cards().items()]
    return config
