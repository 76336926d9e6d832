"""Generated parts of the documentation, and hooks of the site.

Lists of tasks come from the registry and the task cards, entries of the API page from docstrings, a page per command
from its help: ``python docs/hooks.py`` writes them, and tests compare. On the site, links to files outside of ``docs``,
such as examples and tables of results, become plain names; in the repository they work.
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

    table = ["| task | predicts | needs | heads |", "|---|---|---|---|"]
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
    """Replace entries by their documentation, and links that leave the site by plain text."""
    markdown, folder = filled(markdown), (DOCS / page.file.src_uri).parent

    def inside(match: re.Match[str]) -> str:
        words, target = match.groups()
        if re.match(r"\w+:|#", target):
            return match.group()
        path = (folder / target.partition("#")[0]).resolve()
        return match.group() if path.is_relative_to(DOCS) else words

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", inside, markdown)


def on_config(config: Any) -> Any:
    """Add the task cards and the commands to the navigation."""
    tasks = next(section["Tasks"] for section in config["nav"] if "Tasks" in section)
    tasks[1:1] = [{", ".join(named(rows)): f"tasks/{card}"} for card, rows in cards().items()]
    commands = next(section["Commands"] for section in config["nav"] if "Commands" in section)
    commands += [{page.removesuffix(".md"): f"commands/{page}"} for page in command_pages() if page != "index.md"]
    return config


def command_pages() -> dict[str, str]:
    """The pages of ``docs/commands`` by file name: one per command, and an index."""
    from vitlet.cli import ABOUT, COMMANDS, command_groups, command_parser

    index = ["# Commands", "", ABOUT, "", "| command | what it does |", "|---|---|"]
    for title, names in command_groups().items():
        index.append(f"| **{title}** | |")
        index += [f"| [`vitlet {name}`]({name}.md) | {COMMANDS[name][1]} |" for name in names]
    index += ["", "Every page here is the help of a command: `vitlet COMMAND --help`."]
    pages = {"index.md": "\n".join([*index, ""])}
    for name in COMMANDS:
        pages[f"{name}.md"] = "\n".join([*command_lines(command_parser(name), "#"), ""])
    return pages


def command_lines(parser: Any, heading: str) -> list[str]:
    """The help of a command, or of an action of it, as Markdown."""
    from vitlet.cli.parser import invocation, usage_line

    described = re.sub(r"(?<![`\w])(--[\w-]+)", r"`\1`", " ".join((parser.description or "").split()))
    lines = [f"{heading} {parser.prog}", "", described, "", "```text", usage_line(parser), "```", ""]
    lines += ["Example:", "", "```text", *parser.example.splitlines(), "```", ""]
    like_train = parser.prog in ("vitlet pretrain", "vitlet plan", "vitlet tune")
    for title, actions in parser.sections():
        shown = [action for action in actions if "." not in action.dest and action.dest != "help"]
        shown = [action for action in shown if not (like_train and action.dest in parser.hidden)]
        if not shown or title == "help" or hasattr(shown[0], "add_parser"):
            continue
        lines += [f"{heading}# {title.capitalize()}", "", "| option | meaning |", "|---|---|"]
        lines += [f"| `{invocation(action).replace('|', ', ')}` | {meaning(action)} |" for action in shown] + [""]
    if parser.epilog and "ACTION --help" not in parser.epilog:
        lines += [" ".join(parser.epilog.split()), ""]
    if like_train:
        lines += ["The other settings are those of [vitlet train](train.md).", ""]
    if any("." in action.dest for action in parser.actions()):
        lines += [f"Options of a task: `{parser.prog} --help-task NAME`, and the [cards](../tasks/index.md).", ""]
    for action in parser.actions():
        for part in (getattr(action, "choices", None) or {}).values() if hasattr(action, "add_parser") else ():
            lines += command_lines(part, f"{heading}#")
    return lines[:-1] if lines[-1] == "" and heading == "#" else lines


def meaning(action: Any) -> str:
    """The help of an option, for a cell of a table."""
    return (action.help or "").replace("%%", "%").replace("|", "\\|").replace("*", "\\*")


if __name__ == "__main__":
    for page in (DOCS / "api.md", DOCS / "tasks" / "index.md"):
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
    (DOCS / "commands").mkdir(exist_ok=True)
    for name, text in command_pages().items():
        (DOCS / "commands" / name).write_text(text, encoding="utf-8")
