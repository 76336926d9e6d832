"""The command line of ``vitlet plan``: the flags of ``vitlet train``, and its own. No torch here."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args, get_type_hints

from vitlet.cli.flags import Parser, add_run_flags, run_settings
from vitlet.config import RunConfig
from vitlet.experiments.planning.request import PlanRequest

ABOUT = """Predict the memory, step time, hours and cost of a run. Takes the flags of `vitlet train`, so that a command
line is planned by writing plan instead of train. --device is here: this [default], which measures this machine in a few
seconds, or a100, a100-40gb, h100, v100, rtx3090, rtx4090, l4, t4 by their published peaks."""


def parse_plan(words: list[str]) -> tuple[RunConfig, PlanRequest, bool]:
    """Settings of the run, what is asked of the plan, and whether to answer in JSON."""
    parser = Parser(prog="vitlet plan", description=ABOUT)
    group = parser.add_argument_group("plan")
    group.add_argument("--json", action="store_true", help="print JSON")
    hints = get_type_hints(PlanRequest)
    for item in fields(PlanRequest):
        kind = next((each for each in get_args(hints[item.name]) if each is not type(None)), hints[item.name])
        shown = item.metadata["help"] if item.default is None else f"{item.metadata['help']} [{item.default}]"
        flag = "--" + item.name.replace("_", "-")
        group.add_argument(flag, type=kind, default=item.default, help=shown, metavar=item.name.upper())
    add_run_flags(parser)
    namespace = parser.parse_all(words)
    as_json = namespace.json
    del namespace.json
    wishes = {item.name: getattr(namespace, item.name) for item in fields(PlanRequest)}
    for name in wishes:
        delattr(namespace, name)
    config = RunConfig.from_dict(run_settings(namespace), source="vitlet plan")
    return config, PlanRequest(**wishes), as_json
