"""The best model within so many minutes: a portfolio of runs one after another, then the best of them or an ensemble.

The plan is plain: as many members of the portfolio as can each be trained for a useful time share it equally, the usual
settings first, so that there is a model at every moment. Nothing is halved: members that were all trained to their end
make the better ensemble. A greedy ensemble (Caruana et al., 2004: members are added with replacement, as long as the
loss on the validation images falls) is used where it is at least as accurate there as the best single run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitlet.config import RunConfig
from vitlet.data.images import Dataset
from vitlet.errors import InterruptedRunError, VitletError
from vitlet.experiments.search_picture import draw_search
from vitlet.inference.predict import Predictor
from vitlet.training.budget import expected_seconds, measure_speed
from vitlet.training.choice import FOR_TASKS, Choice, choose, completed, frozen_settings
from vitlet.training.clock import Stopwatch
from vitlet.training.distributed import World
from vitlet.training.files import delete
from vitlet.training.jobs import build_job
from vitlet.training.knowledge import knowledge
from vitlet.training.loop import train
from vitlet.training.progress import duration
from vitlet.training.run_folder import RunFolder, next_free
from vitlet.training.search_folder import SEARCH_FILE, SearchMember, SearchRecord, is_search, read_search

SIZES = ("xs", "s", "m", "l", "xl")
SHORT = 2.0
"""Minutes below which nothing is searched."""

ROUNDS = 12
"""Members that a greedy ensemble draws at the most."""

OWN_SECONDS = 2.0
"""What is left beside each member for loading it and the record of the search."""


def member_settings(choice: Choice, given: Sequence[str]) -> list[RunConfig]:
    """The settings of each member of the portfolio for this data, all different, the usual ones first."""
    if choice.layout is not None:  # frozen features first: they take seconds
        return [frozen_settings(choice, given), choice.config]
    with_tasks = any(name in given for name in FOR_TASKS)
    found = [choice.config]
    for entry in knowledge().portfolio[1:]:
        family, size = entry["family"], str(choice.rule.settings["model"]).rpartition("_")[2]
        if with_tasks and family == "resnet":
            continue
        larger = SIZES[min(len(SIZES) - 1, SIZES.index(size) + entry.get("larger", 0))]
        settings = {key: value for key, value in choice.rule.settings.items() if key != "with_tasks"}
        settings |= {"model": f"{family}_{larger}", "task": entry.get("task", {})}
        config = replace(choice.config, **completed(settings, choice.config, given, choice.found))
        found += [config] if config.model not in [each.model for each in found] else []
    return found


class Search:
    """A search in its folder, new or begun before.

    Args:
        path: of the folder.
        record: what was found so far.
        choice: the usual settings, with their data.
        watch: since when the minutes count in this process.
        say: prints a line.
    """

    def __init__(
        self, path: Path, record: SearchRecord, choice: Choice, watch: Stopwatch, say: Callable[[str], None]
    ) -> None:
        assert choice.source is not None
        self.path, self.record, self.choice, self.watch, self.say = path, record, choice, watch, say
        self.before, self.dataset = record.seconds, choice.source
        self.folder = RunFolder(path)

    def seconds(self) -> float:
        """That are used of the time."""
        return self.before + self.watch.used(RunConfig(minutes=self.record.minutes))

    def run(self) -> SearchRecord:
        """Train what is left of the members, choose, and test once."""
        self.folder.acquire()
        try:
            self._save()
            for number, config in enumerate(self.members()[: self.record.count], 1):
                if number > len(self.record.members):
                    self._train(number, config)
            if not self.record.done:
                self._finish()
        except InterruptedRunError:
            self._save()
            raise InterruptedRunError(
                f"stopped after {len(self.record.members)} of {self.record.count} members. Nothing is lost; continue"
                f" with: vitlet train --resume {self.path}"
            ) from None
        finally:
            self.folder.close()
        return self.record

    def members(self) -> list[RunConfig]:
        """The settings of all members."""
        return member_settings(self.choice, self.record.given)

    def _train(self, number: int, config: RunConfig) -> None:
        """One member in its share of the time that is left; it goes on where it was stopped."""
        left = 60 * self.record.minutes - self.seconds() - self._end_seconds()
        share = left / (self.record.count - number + 1) - OWN_SECONDS
        name, began = f"members/{number}", self.seconds()
        begun = (self.path / name / "config.yaml").is_file()
        own = replace(config, minutes=max(share, 1.0) / 60, output=str(self.path / name), resume=None, overwrite=False)
        if begun:
            own = replace(own, resume=str(self.path / name))
        self.say(f"member {number} of {self.record.count}: {own.model}, {duration(share)} of {duration(left)} left")
        choice = replace(self.choice, config=own) if not begun else None
        result = train(own, title=f"member {number}", given={}, watch=Stopwatch(), choice=choice)
        logits, _ = Predictor.load(self.path / name).logits(self._validation())
        self._keep(number, logits.softmax(-1))
        assert result.val is not None
        tasks = {task: each.weight for task, each in own.tasks.items()}
        member = SearchMember(name, own.model, tasks, began, self.seconds(), result.val.top1)
        self.record = replace(self.record, members=(*self.record.members, member))
        self._choose()

    def _keep(self, number: int, probabilities: Tensor) -> None:
        self.folder.write(
            f"validation/{number}.safetensors", lambda file: save_file({"probabilities": probabilities}, file)
        )

    def _validation(self) -> Any:
        assert self.dataset.val is not None
        return self.dataset.val

    def _choose(self) -> None:
        """The best single member, or an ensemble that is at least as good."""
        names = [member.folder for member in self.record.members]
        files = [self.path / "validation" / f"{Path(name).name}.safetensors" for name in names]
        probabilities = torch.stack([load_file(file)["probabilities"] for file in files])
        weights, top1 = greedy_ensemble(probabilities, torch.tensor(self._validation().labels))
        used = {names[index]: weight for index, weight in weights.items()}
        self.record = replace(self.record, weights=used, val_top1=top1)
        self._save()
        shown = " + ".join(f"{weight:.2f} x {Path(name).name}" for name, weight in used.items())
        self.say(f"best so far: {shown}, {top1:.2f} % of the validation images; {duration(self._left())} left")

    def _left(self) -> float:
        return max(0.0, 60 * self.record.minutes - self.seconds())

    def _end_seconds(self) -> float:
        """Of the test of an ensemble; by the time that the members took for it nothing is known, so by images."""
        images = 0 if self.dataset.test is None else len(self.dataset.test)
        return OWN_SECONDS + 0.002 * images * (self.record.count if self.record.count > 1 else 0)

    def _finish(self) -> None:
        predictor = Predictor.load(self.path)
        scores = predictor.evaluate(split="test")[0] if self.dataset.test is not None else None
        self.folder.write("search.png", lambda file: draw_search(self.path, self.record, file))
        self.record = replace(self.record, test=scores.to_dict() if scores else None, done=True)
        self._save()

    def _save(self) -> None:
        self.record = replace(self.record, seconds=self.seconds())
        self.folder.write_text(SEARCH_FILE, self.record.dump())


def greedy_ensemble(probabilities: Tensor, labels: Tensor) -> tuple[dict[int, float], float]:
    """Weights by member ``(members, images, classes)``, and the accuracy in percent of what they answer together."""

    def loss(mean: Tensor) -> float:
        return float(-mean[torch.arange(len(labels)), labels].clamp(min=1e-9).log().mean())

    def top1(mean: Tensor) -> float:
        return 100 * float((mean.argmax(-1) == labels).float().mean())

    single = max(range(len(probabilities)), key=lambda one: (top1(probabilities[one]), -loss(probabilities[one])))
    drawn = [single]
    while len(drawn) < ROUNDS:
        losses = {one: loss(probabilities[[*drawn, one]].mean(0)) for one in range(len(probabilities))}
        best = min(losses, key=lambda one: losses[one])
        if losses[best] >= loss(probabilities[drawn].mean(0)):
            break
        drawn.append(best)
    if top1(probabilities[drawn].mean(0)) < top1(probabilities[single]):
        drawn = [single]
    counts = {one: drawn.count(one) / len(drawn) for one in sorted(set(drawn), key=lambda one: -drawn.count(one))}
    return counts, top1(probabilities[drawn].mean(0))


def plan_search(choice: Choice, given: Mapping[str, Any], watch: Stopwatch) -> SearchRecord | None:
    """A new search within the minutes of these settings, or None where they are too short for more than one run."""
    config, source = choice.config, choice.source
    if config.minutes is None or config.minutes < SHORT or source is None or source.val is None:
        return None
    members = member_settings(choice, list(given))
    job = build_job(replace(config, minutes=None, epochs=_usual_epochs(choice, given)), source)
    usual, _ = expected_seconds(job, World(), measure_speed(job))
    left = 60 * config.minutes - watch.used(config)
    at_once = sum(member.head == "logistic" for member in members)
    count = min(len(members), at_once + int(left / (knowledge().share * usual)))
    return SearchRecord(config.to_dict(), sorted(given), config.minutes, count) if count > 1 else None


def _usual_epochs(choice: Choice, given: Mapping[str, Any]) -> int:
    """Of a run without a budget."""
    without = {key: value for key, value in given.items() if key != "minutes"}
    values = completed(choice.rule.settings, choice.config, without, choice.found)
    return int(values.get("epochs", choice.config.epochs))


def open_folder(config: RunConfig) -> Path:
    """The folder of a new search; refuses one that holds anything else."""
    path = Path(config.output) if config.output else next_free(Path("runs"), replace(config, model="search"))
    if path.is_dir() and any(path.iterdir()):
        if not is_search(path):
            raise VitletError(f"{path} holds other files and is no search; choose another --output.")
        if not config.overwrite:
            raise VitletError(
                f"the search {path} already exists. Choose another --output, continue it with --resume {path}, or"
                " replace it with --overwrite."
            )
        for name in ("members", "validation", "search.png", SEARCH_FILE):
            if (path / name).exists():
                delete(path / name)
    return path


def resume_search(path: Path, watch: Stopwatch, say: Callable[[str], None], source: Dataset | None = None) -> Search:
    """A search that goes on with the settings and the minutes that it has."""
    record = read_search(path)
    config = RunConfig.from_dict(record.settings, source=str(path / SEARCH_FILE))
    given = {key: record.settings.get(key) for key in record.given}
    choice = choose(config, given, source)
    return Search(path, record, replace(choice, config=config), watch, say)
