"""The actions of the commands ``detect`` and ``segment``; torch is imported only by an action."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitlet.cli.flags import Parser, add_run_flags, run_settings
from vitlet.config.setting import RUN
from vitlet.errors import VitletError, nearest
from vitlet.processes import this_process
from vitlet.transfer.common.settings import TransferConfig

if TYPE_CHECKING:
    from vitlet.transfer.common.job import TransferJob


@dataclass(frozen=True)
class TransferCommand:
    """``vitlet NAME train|evaluate|predict``.

    Attributes:
        name: name of the command.
        about: what it does, in a sentence.
        predicts: what ``predict`` does, in a sentence.
        data: the kind of data that ``evaluate`` takes.
        settings: class of the settings of a run.
        recipes: published settings by name.
        job: the `TransferJob` as module:class; importing it imports torch.
        lines: function that prints the predictions for an image as lines of text.
        flags: further flags of ``predict``, as argparse takes them; options of the predictor.
    """

    name: str
    about: str
    predicts: str
    data: str
    settings: type[TransferConfig]
    recipes: Mapping[str, Callable[[], TransferConfig]]
    job: str
    lines: Callable[[Mapping[str, Any]], Iterable[str]]
    flags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def run(self, words: list[str]) -> int:
        """Run an action, or print the help of the command."""
        actions = {"train": self.train, "evaluate": self.evaluate, "predict": self.predict}
        if words and words[0] in ("-h", "--help"):
            self.parser().print_help()
            return 0
        if not words or words[0] not in actions:
            found = f"found {words[0]!r}.{nearest(words[0], actions)}" if words else "found nothing."
            raise VitletError(f"`vitlet {self.name}` needs one of {', '.join(actions)}; {found}")
        return actions[words[0]](words[1:])

    def parser(self) -> Parser:
        """The actions of the command."""
        example = f"vitlet {self.name} train DATA --backbone runs/photos/best\nvitlet {self.name} predict RUN image.jpg"
        after = f"`vitlet {self.name} ACTION --help` describes an action."
        parser = Parser(f"vitlet {self.name}", self.about, example, after)
        makers = {"train": self.train_parser, "evaluate": self.evaluate_parser, "predict": self.predict_parser}

        def made(prog: str, **_: Any) -> Parser:
            return makers[prog.rpartition(" ")[2]]()

        how: Any = {"parser_class": made}  # argparse calls it as it would call a class
        actions = parser.add_subparsers(metavar="|".join(makers), help="action:", prog=parser.prog, **how)
        for action in makers:
            actions.add_parser(action, help=f"see `{parser.prog} {action} --help`")
        return parser

    def train(self, words: list[str]) -> int:
        """Train in ``nproc`` processes, and print the results."""
        config, given = self._config(words)
        process = this_process()
        if (config.nproc or 1) > 1 and not process.launched:
            from vitlet.training.launch import launch

            return launch([*config.JOB.split(), *words], config.nproc or 1)
        from vitlet.cli.summary import print_measured
        from vitlet.training.loop import train_job

        result = train_job(config, lambda _: self._job(), title=self.name, given=given)
        if process.first:
            print_measured(result)
        return 0

    def train_parser(self) -> Parser:
        """The arguments of ``train``."""
        command = f"vitlet {self.settings.JOB}"
        parser = Parser(command, self.about, f"{command} DATA --backbone runs/photos/best --output runs/{self.name}")
        groups = add_run_flags(parser, self.settings)
        about = f"published settings: {', '.join(self.recipes)}"
        groups[RUN].add_argument("--recipe", metavar="NAME", help=about)
        return parser

    def _config(self, words: list[str]) -> tuple[TransferConfig, dict[str, Any]]:
        """The settings of a command line over those of a published recipe, and those that it gives itself."""
        kind, recipes = self.settings, self.recipes
        chosen = self.train_parser().parse_all(words)
        recipe = vars(chosen).pop("recipe")
        given = run_settings(chosen)
        if recipe is not None:
            if recipe not in recipes:
                known = ", ".join(recipes)
                raise VitletError(f"unknown recipe {recipe!r}.{nearest(recipe, recipes)} There are {known}.")
            given = {**recipes[recipe]().to_dict(), **given}
        config = kind.from_dict(given, source=f"vitlet {kind.JOB}")
        if config.resume is None and "data" not in given:
            raise VitletError(f"`vitlet {kind.JOB}` needs DATA. See `vitlet {kind.JOB} --help`.")
        return config, given

    def evaluate_parser(self) -> Parser:
        """The arguments of ``evaluate``."""
        parser = self._parser("evaluate", "Measure a run's best weights.", f"runs/{self.name}")
        parser.add_argument("data", metavar="DATA", nargs="?", help=f"{self.data} (default: the run's own data)")
        about = "split to measure (default: test if there is one, else val)"
        parser.add_argument("--split", choices=("train", "val", "test"), help=about)
        return parser

    def evaluate(self, words: list[str]) -> int:
        """Measure a run's best weights, and print the numbers."""
        chosen = self.evaluate_parser().parse_all(words)
        predictor = self._load(chosen)
        from vitlet.cli.summary import say

        scores, what = predictor.evaluate(chosen.data, split=chosen.split)
        numbers = scores.to_dict()
        if chosen.json:
            by_class = dict(zip(predictor.classes, scores.per_class, strict=True))
            print(json.dumps({"run": chosen.run, "data": what, **numbers, predictor.BY_CLASS: by_class}))
        else:
            found = ", ".join(f"{key} {value:.2f}" for key, value in numbers.items() if key != "count")
            say(f"{what}: {numbers['count']:.0f} images, {found}")
        return 0

    def predict_parser(self) -> Parser:
        """The arguments of ``predict``."""
        parser = self._parser("predict", self.predicts, f"runs/{self.name} image.jpg")
        parser.add_argument("images", metavar="IMAGE", nargs="+", help="image files")
        about = "folder for the pictures (default: predicted)"
        parser.add_argument("--output", metavar="FOLDER", default="predicted", help=about)
        for name, flag in self.flags.items():
            parser.add_argument(f"--{name}", **flag)
        return parser

    def predict(self, words: list[str]) -> int:
        """Use a run's best weights on image files, and print the predictions."""
        chosen = self.predict_parser().parse_all(words)
        options, paths = {name: getattr(chosen, name) for name in self.flags}, [Path(image) for image in chosen.images]
        for path in paths:
            if not path.is_file():
                raise VitletError(f"no such image file: {path}.")
        answers = self._load(chosen).predict(paths, Path(chosen.output), **options)
        from vitlet.cli.summary import say

        if chosen.json:
            print(json.dumps(answers, ensure_ascii=False, indent=2))
            return 0
        for answer in answers:
            for line in self.lines(answer):
                say(line)
        return 0

    def _job(self) -> type[TransferJob]:
        module, _, name = self.job.partition(":")
        job: type[TransferJob] = getattr(import_module(module), name)
        return job

    def _parser(self, action: str, about: str, example: str) -> Parser:
        parser = Parser(f"vitlet {self.name} {action}", about, f"vitlet {self.name} {action} {example}")
        parser.add_usual("run", "--device", "--json")
        return parser

    def _load(self, chosen: argparse.Namespace) -> Any:
        return self._job().PREDICTOR.load(Path(chosen.run), device=chosen.device)
