"""A task's options read from its source, without importing it.

A task imports torch, which takes seconds; ``--help`` and a mistyped flag must answer at once. So the constructor's
keyword-only arguments (types and literal defaults) and its docstring's ``Args`` are read from the file, or from those
of its base classes where the class has no constructor of its own.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, reduce
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from vitlet.errors import VitletError, first_line, nearest
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
    """The module and class of a task; `VitletError` with the nearest known name if there is none."""
    if name not in TASKS:
        raise VitletError(f"unknown task {name!r}.{nearest(name, TASKS)} Known: {', '.join(sorted(TASKS))}.")
    return TASKS[name]


def load_task(name: str) -> type[Task]:
    """The task's class, imported now."""
    from vitlet.tasks.task import Task

    module, _, class_name = require_task(name).partition(":")
    try:
        loaded: Any = getattr(import_module(module), class_name)
    except (ImportError, AttributeError) as problem:
        raise VitletError(f"cannot load the task {name!r} ({module}:{class_name}): {first_line(problem)}.") from problem
    if not (isinstance(loaded, type) and issubclass(loaded, Task)) or loaded.name != name:
        raise VitletError(
            f"the task {name!r} is {module}:{class_name}, which must be a class derived from"
            f" vitlet.tasks.task.Task with name = {name!r}."
        )
    return loaded


@cache
def summary(name: str) -> str:
    """First line of the task's class docstring."""
    return (ast.get_docstring(_classes(name)[0]) or "").partition("\n")[0]


@cache
def declared_options(name: str) -> dict[str, Option]:
    """The constructor's options by name."""
    return _options(_classes(name), name)


def options_of(source: str, class_name: str, module: str) -> dict[str, Option]:
    """The options of a class in a module's source."""
    return _options(list(_lineage(ast.parse(source), class_name, module, class_name)), class_name)


def _options(classes: Sequence[ast.ClassDef], name: str) -> dict[str, Option]:
    """The options of the first constructor there is; a class and its bases explain them in their docstrings."""
    items = (item for node in classes for item in node.body)
    init = next((item for item in items if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
    if init is None:
        return {}
    if len(init.args.args) > 1 or init.args.vararg or init.args.kwarg:
        raise VitletError(f"the constructor of task {name!r} needs keyword-only options: def __init__(self, *, ...).")
    helps: dict[str, str] = {}
    for node in reversed(classes):
        helps |= _argument_help(ast.get_docstring(node) or "")
    options = {}
    for argument, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True):
        try:
            if argument.annotation is None or default is None:
                raise ValueError
            hint = _hint(argument.annotation)
            options[argument.arg] = Option(hint, ast.literal_eval(default), helps.get(argument.arg, ""))
        except (ValueError, TypeError, NameError, AttributeError):
            raise VitletError(
                f"the option {argument.arg!r} of task {name!r} needs a type (int, float, str, bool or a Literal) and a"
                " literal default: both are read without importing the task."
            ) from None
    return options


def _hint(annotation: ast.expr) -> Any:
    """The type of an option: five names and their unions; other types of a union can be passed in Python alone."""
    parts = [annotation]
    while isinstance(parts[0], ast.BinOp) and isinstance(parts[0].op, ast.BitOr):
        parts[:1] = [parts[0].left, parts[0].right]
    found = []
    for part in parts:
        with suppress(NameError, AttributeError):
            found.append(eval(ast.unparse(part), {"__builtins__": {}}, _TYPES))
    if not any(found):
        raise NameError
    return reduce(or_, found)


def textual(hint: Any) -> Any:
    """A type without those of its union that cannot be written on a command line or in a file."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    plain = (*_TYPES.values(), NoneType)
    return reduce(or_, [part for part in get_args(hint) if part in plain or get_origin(part) is Literal])


@cache
def declared_weight(name: str) -> float:
    """The weight that a task suggests for itself."""
    for item in (item for node in _classes(name) for item in node.body):
        target = item.targets[0] if isinstance(item, ast.Assign) else getattr(item, "target", None)
        value = getattr(item, "value", None)
        if value is not None and isinstance(target, ast.Name) and target.id == "suggested_weight":
            try:
                return float(ast.literal_eval(value))
            except (ValueError, TypeError):
                raise VitletError(f"suggested_weight of task {name!r} must be a literal number.") from None
    return 1.0


@cache
def _classes(name: str) -> tuple[ast.ClassDef, ...]:
    """The class of a task, then its bases."""
    module, _, class_name = require_task(name).partition(":")
    return tuple(_lineage(_tree(module, name), class_name, module, name))


def _lineage(tree: ast.Module, class_name: str, module: str, name: str) -> Iterator[ast.ClassDef]:
    """A class and what it derives from, up to `Task`, each in the file that its class is written in."""
    written = {item.name: item for item in tree.body if isinstance(item, ast.ClassDef)}
    if class_name not in written:
        raise VitletError(f"the task {name!r} needs a class {class_name} written in its own module; there is none.")
    yield written[class_name]
    imported = {
        alias.asname or alias.name: (
            resolve_name("." * item.level + (item.module or ""), module.rpartition(".")[0]),
            alias.name,
        )
        for item in tree.body
        if isinstance(item, ast.ImportFrom)
        for alias in item.names
    }
    for base in map(ast.unparse, written[class_name].bases):
        home, original = imported.get(base, (module, base))
        if home == module and base in written:
            yield from _lineage(tree, base, module, name)
        elif home != module and (home, original) != ("vitlet.tasks.task", "Task"):
            with suppress(VitletError):  # a base that is not written where it is imported from declares nothing
                yield from _lineage(_tree(home, name), original, home, name)


def _tree(module: str, name: str) -> ast.Module:
    path = _source(module, name)
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError) as problem:
        raise VitletError(f"the task {name!r} is in {path}, which cannot be read: {first_line(problem)}.") from None


def _source(module: str, name: str) -> Path:
    """The file of a module, found as an import would find it, but without running its packages' code."""
    if module.startswith("vitlet.tasks."):
        return Path(__file__).with_name(module.rpartition(".")[2] + ".py")
    parts = module.split(".")
    folders: Sequence[str] | None = None
    for depth in range(len(parts)):
        spec = _spec(".".join(parts[: depth + 1]), folders)
        if spec is None:
            break
        if depth == len(parts) - 1 and spec.origin is not None and spec.origin.endswith(".py"):
            return Path(spec.origin)
        folders = spec.submodule_search_locations
    raise VitletError(
        f"the task {name!r} is in a module {module} that is not there as a Python file. Install it again."
    )


def _spec(module: str, folders: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        try:
            spec: ModuleSpec | None = finder.find_spec(module, folders, None)
        except KeyError:  # a folder without __init__.py, whose parent would have to be imported: by its own name, then
            spec = finder.find_spec(module.rpartition(".")[2], folders, None)
        if spec is not None:
            return spec
    return None


def _argument_help(docstring: str) -> dict[str, str]:
    """The entries of a Google-style ``Args:`` section, each on one line."""
    section = inspect.cleandoc(docstring).partition("Args:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}
