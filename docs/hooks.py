"""For the site: links to files beside the pages, such as examples and tables of results, become plain names.

The pages are read in the repository too, where these links work; tests/test_docs.py checks that they do. What lists
tasks is made from the registry and from the cards: ``python docs/hooks.py`` writes it anew, and a test compares.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
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


def line(path: str) -> str:
    """An entry of docs/api.md: a name, and the first line of its docstring."""
    module, _, name = path.rpartition(".")
    about = inspect.getdoc(getattr(import_module(module), name)) or ""
    return f"- `{path}`: {about.splitlines()[0]}"


def written(markdown: str) -> str:
    """A page as it is to be committed: its lists of tasks, functions and cards made anew, and every entry's line."""
    from vitlet import functional
    from vitlet.tasks.registry import PUBLIC_TASKS

    table = ["| task | asks | needs | heads |", "|---|---|---|---|"]
    for card, rows in cards().items():
        table += [f"| [{row[0]}]({card}) | {' | '.join(row[1:])} |" for row in rows]
    functions = [getattr(functional, name) for name in functional.__all__]
    lists = {
        "task": [line(f"{module}.{name}") for name, module in PUBLIC_TASKS.items()],
        "function": [line(f"{function.__module__}.{function.__name__}") for function in functions],
        "card": table,
    }

    def anew(match: re.Match[str]) -> str:
        return "\n".join([match[1], "", *lists[match[2]], "", match[3]])

    markdown = re.sub(r"(<!-- each (\w+) -->).*?(<!-- end -->)", anew, markdown, flags=re.DOTALL)
    return re.sub(r"^- `(vitlet\.[\w.]+)`:.*$", lambda match: line(match[1]), markdown, flags=re.MULTILINE)


def filled(markdown: str) -> str:
    """A page as the site shows it: the whole documentation of each entry in place of its line."""
    return re.sub(r"^- `(vitlet\.[\w.]+)`:.*$", r"::: \1", written(markdown), flags=re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Put the documentation in place of its lines, and take links out of the site off a page."""
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


if __name__ == "__main__":
    for page in (DOCS / "api.md", DOCS / "tasks" / "index.md"):
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
