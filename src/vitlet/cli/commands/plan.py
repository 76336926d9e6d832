"""``vitlet plan``."""

from __future__ import annotations

import json


def run(words: list[str]) -> int:
    """Run the command."""
    from vitlet.cli.plan_flags import parse_plan

    config, request, as_json = parse_plan(words)
    from vitlet.experiments.planning.plan import plan
    from vitlet.experiments.planning.table import print_plan

    found = plan(config, request)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        print_plan(found)
    return 0
