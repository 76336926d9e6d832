"""What the commands ``detect`` and ``segment`` share; torch is imported when something is trained or used."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitlet.cli.flags import Parser, add_run_flags, run_settings
from vitlet.errors import VitletError, nearest
from vitlet.processes import this_process
from vitlet.transfer.common.settings import TransferConfig

if TYPE_CHECKING:
    from vitlet.transfer.common.job import TransferJob


@dataclass(frozen=True)
class TransferCommand:
    """``vitlet NAME train|evaluate|predict``.

    Attributes:
        name: of the command.
        about: what it does, in a sentence.
        predicts: what ``predict`` gives, in a sentence.
        data: what ``evaluate`` takes.
        settings: of a run, and ``recipes``, published ones by name.
        job: where the `TransferJob` is, as module:class; importing it imports torch.
        lines: what was predicted for an image, in words.
        flags: of ``predict`` beside those that both commands have, as argparse takes them; options of the predictor.
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
        """Run an action, or tell which there are."""
        actions = {"train": self.train, "evaluate": self.evaluate, "predict": self.predict}
        if words and words[0] in ("-h", "--help"):
            print(f"usage: vitlet {self.name} {'|'.join(actions)} ...\n\n{self.about}")
            print(f"`vitlet {self.name} ACTION --help` tells the rest.")
            return 0
        if not words or words[0] not in actions:
            found = f"found {words[0]!r}.{nearest(words[0], actions)}" if words else "found nothing."
            raise VitletError(f"`vitlet {self.name}` needs one of {', '.join(actions)}; {found}")
        return actions[words[0]](words[1:])

    def train(self, words: list[str]) -> int:
        """Train in as many processes as asked for, and print the end."""
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

    def _config(self, words: list[str]) -> tuple[TransferConfig, dict[str, Any]]:
        """The settings of a command line, on top of those of a published recipe, and those of them that it gives."""
        kind, recipes = self.settings, self.recipes
        parser = Parser(prog=f"vitlet {kind.JOB}", description=self.about)
        parser.add_argument("--recipe", metavar="NAME", help=f"a published setting: {', '.join(recipes)}")
        add_run_flags(parser, kind)
        chosen = parser.parse_all(words)
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

    def evaluate(self, words: list[str]) -> int:
        """Measure a run's best weights, and print the numbers."""
        parser = self._parser("evaluate", "Measure a run's best weights.")
        parser.add_argument("data", metavar="DATA", nargs="?", help=f"{self.data} (default: the run's own data)")
        parser.add_argument("--split", choices=("train", "val", "test"), help="default: test if there is one, else val")
        chosen = parser.parse_all(words)
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

    def predict(self, words: list[str]) -> int:
        """Use a run's best weights on image files, and print what was found."""
        parser = self._parser("predict", self.predicts)
        parser.add_argument("images", metavar="IMAGE", nargs="+", help="image files")
        parser.add_argument("--output", metavar="FOLDER", default="predicted", help="for the pictures [predicted]")
        for name, flag in self.flags.items():
            parser.add_argument(f"--{name}", **flag)
        chosen = parser.parse_all(words)
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

    def _parser(self, action: str, about: str) -> Parser:
        parser = Parser(prog=f"vitlet {self.name} {action}", description=about)
        parser.add_argument("run", metavar="RUN", help="run folder")
        parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps [auto]")
        parser.add_argument("--json", action="store_true", help="print JSON")
        return parser

    def _load(self, chosen: argparse.Namespace) -> Any:
        return self._job().PREDICTOR.load(Path(chosen.run), device=chosen.device)
