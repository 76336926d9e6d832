"""Search for the best model within a time budget: train a portfolio of models, then use the best one or an ensemble.

As many members of the portfolio as can each be trained for a useful time share the budget by their cost. The default
comes first, so that there is a usable model early. There is no successive halving: members that are trained to their
end make the better ensemble. A greedy ensemble (Caruana et al., 2004: members are added with replacement while the loss
on the validation images decreases) is used if it is at least as accurate on these images as the best single run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.table import Table
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitlet.config import RunConfig
from vitlet.data.images import Dataset
from vitlet.errors import InterruptedRunError, NotFiniteError, TooShortError, VitletError
from vitlet.experiments.search_board import member_name, search_board, used_members_line
from vitlet.experiments.search_picture import draw_search
from vitlet.experiments.search_processes import threads_of_each, train_together
from vitlet.inference.predict import Predictor
from vitlet.training.budget import expected_seconds, measure_speed
from vitlet.training.choice import FOR_TASKS, Choice, choose, completed, frozen_settings
from vitlet.training.clock import Stopwatch
from vitlet.training.distributed import World
from vitlet.training.evaluate import Scores, score_answers
from vitlet.training.files import delete
from vitlet.training.finish import finished
from vitlet.training.inputs import decode_once
from vitlet.training.jobs import job_class
from vitlet.training.knowledge import knowledge
from vitlet.training.loop import train
from vitlet.training.progress import duration
from vitlet.training.run_folder import RunFolder, next_free
from vitlet.training.search_folder import SEARCH_FILE, SearchMember, SearchRecord, Workers, is_search, read_search

SIZES = ("xs", "s", "m", "l", "xl")
SHORT = 2.0
"""Shortest budget of a search, in minutes."""

ROUNDS = 12
"""Maximum number of draws of the greedy ensemble."""

ASKED_SECONDS = 0.002
"""Estimated seconds per predicted image until a member was measured; later members correct for the error."""

END_SECONDS = 1.0
"""Time reserved at the end for the final choice, the picture and the record."""


class PlannedMember(NamedTuple):
    """A member of the portfolio: its settings, and the time of its epochs over that of the default's."""

    config: RunConfig
    cost: float = 1.0


def portfolio_members(choice: Choice, given: Sequence[str]) -> list[PlannedMember]:
    """The members of the portfolio for this data, all different, the default first."""
    if choice.layout is not None:  # frozen features first: they take seconds
        return [PlannedMember(frozen_settings(choice, given)), PlannedMember(choice.config)]
    with_tasks = any(name in given for name in FOR_TASKS)
    found = [PlannedMember(choice.config)]
    for entry in knowledge().portfolio[1:]:
        family, size = entry["family"], str(choice.rule.settings["model"]).rpartition("_")[2]
        if with_tasks and family == "resnet":
            continue
        larger = SIZES[min(len(SIZES) - 1, SIZES.index(size) + entry.get("larger", 0))]
        settings = {key: value for key, value in choice.rule.settings.items() if key != "with_tasks"}
        settings |= {"model": f"{family}_{larger}", "task": entry.get("task", {}), **entry.get("settings", {})}
        config = replace(choice.config, **completed(settings, choice.config, given, choice.found))
        if config not in [each.config for each in found]:
            found.append(PlannedMember(config, entry.get("cost", 1.0)))
    return found


def groups_of(members: Sequence[PlannedMember], together: int) -> list[Sequence[PlannedMember]]:
    """The members in groups that are trained at the same time."""
    return [members[first : first + together] for first in range(0, len(members), together)]


def group_cost(group: Sequence[PlannedMember]) -> float:
    """Cost of the slowest member of a group."""
    return max(member.cost for member in group)


def member_choice(choice: Choice, own: RunConfig) -> Choice:
    """The choice with a member's settings; what was measured holds for the default settings only."""
    usual = member_name(own, choice.config) == choice.config.model
    rule = choice.rule if usual else replace(choice.rule, measured=None)
    return replace(choice, config=own, rule=rule)


class Search:
    """A search and its folder, new or resumed.

    Args:
        path: the folder.
        record: results so far.
        choice: the default settings, with their data.
        watch: stopwatch that started with the budget.
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
        """Seconds of the budget used so far."""
        return self.before + self.watch.used(RunConfig(minutes=self.record.minutes))

    def run(self) -> SearchRecord:
        """Train the remaining members, choose, and test once."""
        self.folder.acquire()
        try:
            self._save()
            while len(self.record.members) < self.record.count:
                self._train_next()
            if not self.record.done:
                self._finish()
        except InterruptedRunError:
            self._save()
            raise InterruptedRunError(
                f"stopped after {len(self.record.members)} of {self.record.count} members. Nothing is lost; continue"
                f" with: vitlet train --resume {self.path}"
            ) from None
        except VitletError as problem:  # a full disk, say: the message names the member, which is not what goes on
            done = len(self.record.members)
            if done == self.record.count:  # all diverged
                raise
            usable = f"; vitlet predict {self.path} uses what there is" if self.record.usable else ""
            raise type(problem)(
                f"{problem} That was member {done + 1} of {self.record.count} of a search, which goes on with: vitlet"
                f" train --resume {self.path}{usable}."
            ) from problem
        finally:
            self.folder.close()
        return self.record

    def board(self) -> Table:
        """Table shown on the terminal while a member is trained."""
        return search_board(self.record, [member.config for member in self.members()], self._left())

    def members(self) -> list[PlannedMember]:
        """All members that may be planned."""
        return portfolio_members(self.choice, self.record.given)

    def _train_next(self) -> None:
        """Train the next member, or the next few at the same time, in their share of the remaining time."""
        done, count, together = len(self.record.members), self.record.count, self.record.workers.count
        numbers = range(done + 1, min(done + together, count) + 1)
        left, began = 60 * self.record.minutes - self.seconds() - END_SECONDS, self.seconds()
        groups = groups_of(self.members()[done:count], together)
        share = left * group_cost(groups[0]) / sum(map(group_cost, groups)) - sum(map(self._asked_seconds, groups[0]))
        runs = {number: self._own(number, share) for number in numbers}
        for number, own in runs.items():
            self.say(f"member {number} of {count}: {own.model}, {duration(share)} of {duration(left)} left")
        diverged: dict[Path, str] = {}
        try:
            if together > 1:
                folders = {self.path / f"members/{number}": own for number, own in runs.items()}
                diverged = train_together(folders, self.record.workers)
            else:
                self._train(*numbers, *runs.values())
        except NotFiniteError as problem:  # the others may do without its time
            diverged = {self.path / f"members/{numbers[0]}": str(problem)}
        except TooShortError as problem:
            if not self.record.usable:
                raise
            self.say(f"no time is left for another member: {problem}")
            self.record = replace(self.record, count=done)
            return
        for number, own in runs.items():
            self._take_in(number, own, began, diverged.get(self.path / f"members/{number}", ""))
        if self.record.usable:
            self._choose()

    def _own(self, number: int, share: float) -> RunConfig:
        """Settings of a member with a budget of ``share`` seconds."""
        output = str(self.path / f"members/{number}")
        config = self.members()[number - 1].config
        return replace(config, minutes=max(share, 1.0) / 60, output=output, resume=None, overwrite=False)

    def _train(self, number: int, own: RunConfig) -> None:
        """Train one member in this process, or resume it."""
        folder = self.path / f"members/{number}"
        choice: Choice | None = member_choice(self.choice, own)
        if (folder / "config.yaml").is_file():
            own, choice = replace(own, resume=str(folder)), None
        watch, title = self.watch.restarted(), f"member {number}"
        train(own, title=title, given={}, watch=watch, choice=choice, above=self.board)

    def _take_in(self, number: int, own: RunConfig, began: float, diverged: str) -> None:
        """Add a trained member to the record, with its predictions on the held-out images unless it diverged."""
        name, trained = f"members/{number}", self.seconds()
        tasks = {task: each.weight for task, each in own.tasks.items()}
        model = member_name(own, self.choice.config)
        if diverged:
            self.say(f"member {number} diverged and is not used: {diverged}")
            member = SearchMember(name, model, tasks, began, trained, 0.0, diverged=diverged)
            self.record = replace(self.record, members=(*self.record.members, member))
            return
        result = finished(self.path / name, Scores)
        assert result is not None and result.val is not None
        for split in self._held_out():
            self._answers(name, split)
        asked = self.seconds() - trained
        member = SearchMember(name, model, tasks, began, self.seconds(), result.val.top1, asked)
        self.record = replace(self.record, members=(*self.record.members, member))

    def _held_out(self) -> list[str]:
        return [name for name in self.dataset.splits() if name != "train"]

    def _answers(self, member: str, split: str) -> tuple[Tensor, Tensor]:
        """Probabilities ``(images, classes)`` of a member on a split, and the labels; computed once and saved.

        Test images are included, so that no prediction is left for the end; the choice does not depend on them.
        """
        name = f"{split}/{Path(member).name}.safetensors"
        if not (self.path / name).is_file():
            predictor = Predictor.load(self.path / member)
            decoded = decode_once(predictor.config, self.dataset, predictor.preprocess, self.choice.decoded)
            logits, labels = predictor.logits_of(decoded.splits()[split])
            found = {"probabilities": logits.softmax(-1), "labels": labels}
            self.folder.write(name, lambda file: save_file(found, file))
        tensors = load_file(self.path / name)
        return tensors["probabilities"], tensors["labels"]

    def _choose(self) -> None:
        """Choose the best single member, or an ensemble that is at least as accurate."""
        names = [member.folder for member in self.record.usable]
        answers = [self._answers(name, "val") for name in names]
        weights, top1 = greedy_ensemble(torch.stack([each for each, _ in answers]), answers[0][1])
        used = {names[index]: weight for index, weight in weights.items()}
        self.record = replace(self.record, weights=used, val_top1=top1)
        self._save()
        self.say(f"best so far: {used_members_line(self.record)}; {duration(self._left())} left")

    def _left(self) -> float:
        return max(0.0, 60 * self.record.minutes - self.seconds())

    def _asked_seconds(self, member: PlannedMember) -> float:
        """Seconds of a member's predictions on validation and test images: by the slowest so far, or an estimate."""
        images = sum(len(images) for name, images in self.dataset.splits().items() if name != "train")
        pairs = zip(self.record.members, self.members(), strict=False)
        slowest = max((done.asked / known.cost for done, known in pairs), default=0.0)
        return member.cost * (slowest or ASKED_SECONDS * images)

    def _finish(self) -> None:
        """Score the chosen members' saved predictions on the test images; draw the picture."""
        if not self.record.usable:
            raise NotFiniteError(f"all {len(self.record.members)} members diverged: {self.record.members[0].diverged}")
        test = None
        if self.dataset.test is not None:
            answers = {name: self._answers(name, "test") for name in self.record.weights}
            parts = [weight * answers[name][0] for name, weight in self.record.weights.items()]
            test = score_answers(torch.stack(parts).sum(0), next(iter(answers.values()))[1]).to_dict()
        self.folder.write("search.png", lambda file: draw_search(self.path, self.record, file))
        self.record = replace(self.record, test=test, done=True)
        self._save()

    def _save(self) -> None:
        self.record = replace(self.record, seconds=self.seconds())
        self.folder.write_text(SEARCH_FILE, self.record.dump())


def greedy_ensemble(probabilities: Tensor, labels: Tensor) -> tuple[dict[int, float], float]:
    """Greedy ensemble of predictions ``(members, images, classes)``: weight by member, and accuracy in percent."""

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


def plan_search(choice: Choice, given: Mapping[str, Any], watch: Stopwatch, workers: Workers) -> SearchRecord | None:
    """Plan a search within the minutes of these settings; None if they are too short for more than one run.

    Args:
        choice: the default settings.
        given: settings named by the user.
        watch: stopwatch that started with the budget.
        workers: processes that train members at the same time.
    """
    config, source, processes = choice.config, choice.source, workers.count
    if config.minutes is None or config.minutes < SHORT or source is None or source.val is None:
        return None
    members = portfolio_members(choice, list(given))
    usual_config = replace(config, minutes=None, epochs=_usual_epochs(choice, given))
    job = job_class(usual_config).build(usual_config, choice=choice)
    with _threads(threads_of_each(processes) if processes > 1 else torch.get_num_threads()):
        usual, _ = expected_seconds(job, World(), measure_speed(job, watch))
    units, count = (60 * config.minutes - watch.used(config)) / (knowledge().share * usual), 0
    for group in groups_of(members, processes):
        units -= 0 if group[0].config.head == "logistic" else group_cost(group)
        if units < 0:
            break
        count += len(group)
    record = SearchRecord(config.to_dict(), sorted(given), config.minutes, count, workers=workers)
    return record if count > 1 else None


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Context with this number of PyTorch threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _usual_epochs(choice: Choice, given: Mapping[str, Any]) -> int:
    """Epochs of a run without a budget."""
    without = {key: value for key, value in given.items() if key != "minutes"}
    values = completed(choice.rule.settings, choice.config, without, choice.found)
    return int(values.get("epochs", choice.config.epochs))


def open_folder(config: RunConfig) -> Path:
    """Folder of a new search; refuses a folder with other files."""
    path = Path(config.output) if config.output else next_free(Path("runs"), replace(config, model="search"))
    if path.is_dir() and any(path.iterdir()):
        if not is_search(path):
            raise VitletError(f"{path} holds other files and is no search; choose another --output.")
        if not config.overwrite:
            raise VitletError(
                f"the search {path} already exists. Choose another --output, continue it with --resume {path}, or"
                " replace it with --overwrite."
            )
        for name in ("members", "val", "test", "search.png", SEARCH_FILE):
            if (path / name).exists():
                delete(path / name)
    return path


def resume_search(path: Path, watch: Stopwatch, say: Callable[[str], None], source: Dataset | None = None) -> Search:
    """Resume a search with its saved settings and the rest of its budget."""
    record = read_search(path)
    config = RunConfig.from_dict(record.settings, source=str(path / SEARCH_FILE))
    given = {key: record.settings.get(key) for key in record.given}
    choice = choose(config, given, source)
    return Search(path, record, replace(choice, config=config), watch, say)
