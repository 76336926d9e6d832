"""``vitlet tasks``."""

from __future__ import annotations

from vitlet.flags import Parser


def run(words: list[str]) -> int:
    """Run the command."""
    Parser(prog="vitlet tasks", description="The tasks and their options.").parse_all(words)
    from vitlet.config import TERM_OPTIONS
    from vitlet.summary import print_tasks
    from vitlet.tasks import TASKS
    from vitlet.tasks.declared import declared_options, declared_weight, summary

    print_tasks({n: (summary(n), declared_weight(n), {**declared_options(n), **TERM_OPTIONS}) for n in TASKS})
    return 0
