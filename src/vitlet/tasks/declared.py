"""A task's options read from its source, without importing it.

A task imports torch, which takes seconds; ``--help`` and a mistyped flag must answer at once. So the constructor's
keyword-only arguments (types and literal defaults) and its docstring's ``Args`` are read from the file.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitlet.errors import VitletError, nearest
from vitlet.tasks import TASKS

if TYPE_CHECKING:
    from vitlet.tasks.task import Task

_TYPES = {"Literal": Literal, "int": int, "float": float, "str": str, "bool": bool}


@dataclass(frozen=True)
class Option:
    """One keyword of a task's constructor."""

    hint: Any
    default: Any
    help: str


def require_task(name: str) -> str:
    """The module and class of a task, or a sentence with the nearest known name."""
    if name not in TASKS:
        raise VitletError(f"unknown task {name!r}.{nearest(name, TASKS)} Known: {', '.join(sorted(TASKS))}.")
    return TASKS[name]


def load_task(name: str) -> type[Task]:
    """The task's class, imported now."""
    module, _, class_name = require_task(name).partition(":")
    loaded: type[Task] = getattr(import_module(module), class_name)
    return loaded


@cache
def summary(name: str) -> str:
    """First line of the task's class docstring."""
    return (ast.get_docstring(_class_node(name)) or "").partition("\n")[0]


@cache
def declared_options(name: str) -> dict[str, Option]:
    """The constructor's options by name."""
    node = _class_node(name)
    init = next(item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__")
    helps = _argument_help(ast.get_docstring(node) or "")
    options = {}
    for argument, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True):
        if argument.annotation is None or default is None:
            raise TypeError(f"{name}: option {argument.arg!r} needs a type and a literal default")
        hint = eval(ast.unparse(argument.annotation), {"__builtins__": {}}, _TYPES)  # our own source, five names
        options[argument.arg] = Option(hint, ast.literal_eval(default), helps.get(argument.arg, ""))
    return options


@cache
def declared_weight(name: str) -> float:
    """The weight that a task suggests for itself."""
    for item in _class_node(name).body:
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "suggested_weight":
            return float(ast.literal_eval(item.value))
    return 1.0


def _class_node(name: str) -> ast.ClassDef:
    module, _, class_name = require_task(name).partition(":")
    path = Path(__file__).with_name(module.rpartition(".")[2] + ".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)


def _argument_help(docstring: str) -> dict[str, str]:
    """The entries of a Google-style ``Args:`` section, each on one line."""
    section = inspect.cleandoc(docstring).partition("Args:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}
