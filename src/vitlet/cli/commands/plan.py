"""Predict memory, step time, hours and cost of a run before it is started. Takes the flags of `vitlet train`. Here
--device is this (default), which measures this machine in a few seconds, or a100, a100-40gb, h100, v100, rtx3090,
rtx4090, l4, t4 by their published peak performance."""

from __future__ import annotations

import json
from typing import Any

from vitlet.cli.commands.train import add_recipe_flags, is_open, is_released, with_recipe
from vitlet.cli.flags import Parser, add_run_flags, add_settings
from vitlet.config import RunConfig
from vitlet.config.setting import RUN
from vitlet.experiments.planning.request import PlanRequest


def run(words: list[str]) -> int:
    """Run the command."""
    config, request, as_json, given = parse_plan(words)
    from vitlet.experiments.planning.plan import plan
    from vitlet.experiments.planning.supply import planned_choice
    from vitlet.experiments.planning.table import print_plan

    lines: tuple[str, ...] = ()
    if given is not None:
        choice = planned_choice(config, given, request)
        config, lines = choice.config, choice.lines
    found = plan(config, request)
    if as_json:
        print(json.dumps(found.to_dict() | ({"chosen": lines} if lines else {}), indent=2))
    else:
        print_plan(found, lines)
    return 0


def parser() -> Parser:
    """The arguments of the command."""
    example = "vitlet plan photos --model resnet50 --epochs 100 --device a100 --price 2"
    parser = Parser("vitlet plan", __doc__, example=example)
    parser.add_usual("--json")
    add_settings(parser, PlanRequest)
    add_recipe_flags(parser, add_run_flags(parser)[RUN])
    parser.hidden |= {"minutes", "lr", "seed", "aug", "output", "resume"}  # which change nothing here
    return parser


def parse_plan(words: list[str]) -> tuple[RunConfig, PlanRequest, bool, dict[str, Any] | None]:
    """Settings of the run and of the plan, whether to print JSON, and the given settings if others are to be chosen."""
    chosen = parser().parse_all(words)
    as_json = vars(chosen).pop("json")
    wishes = {item.name: vars(chosen).pop(item.name) for item in PlanRequest.settings() if item.name in chosen}
    given = with_recipe(chosen, {}, runs=False)
    config = RunConfig.from_dict(given, source="vitlet plan")
    wanted = PlanRequest(**PlanRequest.coerced(wishes, "vitlet plan"))
    return config, wanted, as_json, given if is_open(chosen, given) or is_released(config, given) else None
