"""The settings of a run as command-line flags, made from `RunConfig` and from the tasks' declarations.

No torch here: ``--help`` and a mistyped flag answer at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import MISSING
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from vitlet.cli.parser import HelpAll, HelpTask
from vitlet.cli.parser import Parser as Parser  # commands import it from here
from vitlet.config import PRESET, TERM_OPTIONS, BaseConfig, RunConfig
from vitlet.config.setting import AUG, CHECKPOINTS, DATA, HARDWARE, MODEL, OPTIM, RUN, TASK, Group, Settings
from vitlet.errors import VitletError
from vitlet.tasks import TASKS
from vitlet.tasks.declared import declared_options, declared_weight, require_task
from vitlet.values import ImageSize, Names

FIRST = {
    *("data", "model", "backbone", "pretrained", "img_size", "minutes", "epochs", "batch_size", "lr", "seed"),
    *("aug", "task", "device", "output", "resume"),
}
"""The settings that ``--help`` shows; the others are shown by ``--help-all``."""

GROUP_ORDER = (DATA, MODEL, OPTIM, AUG, TASK, HARDWARE, CHECKPOINTS, RUN)
"""The groups of settings as ``--help`` lists them."""


def add_run_flags(parser: Parser, kind: type[BaseConfig] = RunConfig) -> dict[Group, Any]:
    """DATA, ``-c``, one flag per setting of this kind of run, ``--task`` and the tasks' own flags; the groups."""
    about = next(str(item.metadata["help"]) for item in kind.settings() if item.name == "data")
    parser.add_argument("data", metavar="DATA", nargs="?", default=argparse.SUPPRESS, help=about)
    parts = add_settings(parser, kind)
    file = "YAML file of settings, such as a run's config.yaml; flags override it"
    parts[RUN].add_argument("-c", "--config", metavar="FILE", help=file)
    about = "auxiliary task and its weight; repeatable; none for none"
    how: dict[str, Any] = {"metavar": "NAME[=WEIGHT]", "action": "append", "default": argparse.SUPPRESS}
    parts[TASK].add_argument("--task", help=f"{about} ({', '.join(TASKS)})", **how)
    for name in TASKS:
        try:
            options = declared_options(name) | TERM_OPTIONS
        except VitletError:  # an installed package is broken: reported where its task is used, and by `vitlet tasks`
            continue
        for key, option in options.items():
            _add_flag(parts[TASK], [], f"{name}.{key}", option.hint, option.help, option.default)
    parser.hidden |= {action.dest for group in parts.values() for action in group._group_actions} - FIRST
    more: dict[str, Any] = {"nargs": 0, "default": argparse.SUPPRESS, "help": "show all options but those of the tasks"}
    parser.help_group.add_argument("--help-all", action=HelpAll, **more)
    more = {"metavar": "NAME", "default": argparse.SUPPRESS, "help": "show the options of a task, such as drloc"}
    parser.help_group.add_argument("--help-task", action=HelpTask, **more)
    return parts


def add_settings(parser: Parser, kind: type[Settings]) -> dict[Group, Any]:
    """One flag per setting but DATA, in groups; returns the groups, those of a run in the order of `GROUP_ORDER`."""
    hints, items = get_type_hints(kind), kind.settings()
    found = dict.fromkeys(item.metadata["group"] for item in items)
    run = [group for group in GROUP_ORDER if issubclass(kind, BaseConfig)]
    parts = {group: parser.add_argument_group(group.title) for group in [*run, *(found.keys() - set(run))]}
    for item in items:
        if item.name != "data":
            default = None if item.default is MISSING else item.default
            names = [item.metadata["flag"]] if item.metadata["flag"] else []
            group = parts[item.metadata["group"]]
            _add_flag(group, names, item.name, hints[item.name], item.metadata["help"], default)
    return parts


def run_settings(namespace: argparse.Namespace) -> dict[str, Any]:
    """The file's values overridden by the flags that were given, under the keys of a YAML file."""
    given = dict(vars(namespace))
    file, entries = given.pop("config"), given.pop("task", [])
    values = RunConfig.read(file) if file else {}
    stored = values.get("task") or {}
    if entries == ["none"]:
        values = {key: value for key, value in values.items() if key not in TASKS} | {"task": {}}
    elif "none" in entries:
        raise VitletError("--task none cannot be combined with other tasks; leave it out, or the others.")
    elif entries and isinstance(stored, dict):
        values["task"] = stored | dict(map(_weighted, entries))
    if "aug" in given and given["aug"] != values.get("aug", given["aug"]):
        values = {key: value for key, value in values.items() if key not in PRESET}  # a run's file holds its preset's
    if "data" in given and given["data"] != values.get("data", given["data"]):
        values.pop("num_classes", None)  # of the other data
    if ":" in str(given.get("img_size", "")):
        first, _, last = str(given["img_size"]).partition(":")
        given |= {"img_size_start": first, "img_size": last}
    if "model_kwargs" in given:
        given["model_kwargs"] = {**(values.get("model_kwargs") or {}), **_pairs(given["model_kwargs"])}
    for key, value in given.items():
        task, separator, option = key.partition(".")
        if separator:
            values[task] = {**(values.get(task) or {}), option: value}
        else:
            values[key] = value
    return values


def _weighted(entry: str) -> tuple[str, str | float]:
    name, separator, weight = entry.partition("=")
    if separator and not weight:
        raise VitletError(f"--task {entry}: needs a weight, such as --task {name}=0.5.")
    require_task(name)
    return name, weight or declared_weight(name)


METAVARS = {
    "cache_dir": "DIR", "class_list": "FILE", "data_dir": "DIR", "device": "NAME", "group_by": "PATTERN", "init": "RUN",
    "model": "NAME", "backbone": "RUN", "opt": "NAME", "opt_betas": "B1,B2", "output": "DIR", "resume": "RUN",
    "class_weights": "X,X,...", "decay_milestones": "N,N,...", "test_scales": "X,X,...",
}  # fmt: skip
"""What stands for the value of a setting in a help text; for the others its type says enough."""


def _add_flag(group: Any, short: list[str], key: str, hint: Any, about: str, default: Any) -> None:
    """The flag of a setting or of a task's option; not given, it leaves no trace in the parsed arguments."""
    base = hint if get_origin(hint) is Literal else next(iter(get_args(hint)), hint)
    plain = default is None or default is False or default == {} or "default" in about
    shown = about.rstrip(".") if plain else f"{about.rstrip('.')} (default: {_written(default)})"
    names = [*short, "--" + key.replace("_", "-")]
    options: dict[str, Any] = {"dest": key, "default": argparse.SUPPRESS, "help": shown.replace("%", "%%")}
    if base is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif key == "model_kwargs":
        options |= {"nargs": "+", "metavar": "NAME=VALUE"}
    elif base == Names:
        options |= {"nargs": "+", "metavar": "NAME"}
    else:
        words = "|".join(map(str, get_args(base))) if get_origin(base) is Literal else ""
        usual = {int: "N", float: "X", ImageSize: "SIZE"}.get(base, key.rpartition(".")[2].upper())
        options["metavar"] = words or METAVARS.get(key, usual)
    group.add_argument(*names, **options)


def _written(default: Any) -> str:
    """A default as it would be typed."""
    if isinstance(default, tuple):
        return "x".join(map(str, default))
    if default is True:
        return "on"
    return f"{default:g}" if isinstance(default, float) else str(default)


def _pairs(entries: Sequence[str]) -> dict[str, Any]:
    values = {}
    for entry in entries:
        name, separator, value = entry.partition("=")
        if not separator:
            raise VitletError(f"--model-kwargs {entry}: needs NAME=VALUE.")
        listed = f"[{value}]" if "," in value and value[0] not in "[({" else value
        try:
            values[name] = yaml.safe_load(listed.replace("(", "[").replace(")", "]") if "," in value else value)
        except Exception as error:  # beside YAML's own errors those of numbers, dates and nesting
            raise VitletError(
                f"--model-kwargs {entry}: {value} is not a valid value; lists are written 2,2,6."
            ) from error
    return values
