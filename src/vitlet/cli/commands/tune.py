"""Search learning rate and task weights on validation images within --minutes (default: 60)."""

from __future__ import annotations

from pathlib import Path

from vitlet.cli.commands.train import is_open, is_released
from vitlet.cli.flags import Parser, add_run_flags, run_settings
from vitlet.config import RunConfig
from vitlet.errors import VitletError
from vitlet.values import coerce


def parser() -> Parser:
    """The arguments of the command."""
    example = "vitlet tune photos --minutes 120 --output runs/search\nvitlet train -c runs/search/best.yaml"
    parser = Parser("vitlet tune", __doc__, example=example)
    parser.add_argument("--trials", type=int, metavar="N", help="number of trials at most (default: as time allows)")
    add_run_flags(parser)
    return parser


def run(words: list[str]) -> int:
    """Run the command."""
    chosen = parser().parse_all(words)
    # Minutes of the search, not of a run: no trial is started that would end later.
    minutes = coerce(vars(chosen).pop("minutes", 60.0), float, "minutes")
    trials = vars(chosen).pop("trials")
    given = run_settings(chosen)
    config = RunConfig.from_dict(given, source="vitlet tune")
    from vitlet.training.jobs import job_class

    if not job_class(config).labelled or config.resume:
        raise VitletError("vitlet tune trains with labels, from the start; leave --pretrain and --resume out.")
    if (config.nproc or 1) > 1:
        raise VitletError("vitlet tune runs one process; leave --nproc out.")
    from vitlet.cli.summary import say
    from vitlet.experiments.tuning import tune
    from vitlet.training.choice import choose
    from vitlet.training.run_folder import run_name

    if is_open(chosen, given) or is_released(config, given):
        choice = choose(config, given)
        config = choice.config
        for line in choice.lines:
            say(line)
    folder = Path(config.output or f"runs/tune-{run_name(config)}")
    best, found = tune(config, folder, minutes=minutes, trials=trials, open_tasks="task" not in given, say=say)
    (folder / "best.yaml").write_text(best.dump(), encoding="utf-8")
    say("trials, best first:")
    for each in found:
        shown = ", ".join(f"{name} {value:.3g}" for name, value in each.values.items())
        say(f"  {each.number + 1:>3}  {each.top1:6.2f} %  {shown}")
    say(f"best settings: vitlet train -c {folder / 'best.yaml'} (chosen on the validation images; test is untouched)")
    return 0
