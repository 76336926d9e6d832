"""List the auxiliary tasks, their suggested weights and their options."""

from __future__ import annotations

from vitlet.cli.flags import Parser


def parser() -> Parser:
    """The arguments of the command."""
    return Parser(
        "vitlet tasks", __doc__, example="vitlet tasks\nvitlet train photos --task drloc=0.5 --drloc.pairs 32"
    )


def run(words: list[str]) -> int:
    """Run the command."""
    parser().parse_all(words)
    from vitlet.cli.summary import print_tasks, say
    from vitlet.config import TERM_OPTIONS
    from vitlet.errors import VitletError
    from vitlet.tasks import TASKS
    from vitlet.tasks.declared import declared_options, declared_weight, summary

    shown, broken = {}, []
    for name in TASKS:
        try:
            shown[name] = (summary(name), declared_weight(name), declared_options(name) | TERM_OPTIONS)
        except VitletError as problem:  # of a package that is installed, but broken
            broken.append(str(problem))
    print_tasks(shown)
    for sentence in broken:
        say(f"left out: {sentence}")
    return 0
