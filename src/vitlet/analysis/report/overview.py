"""The first part of a report: what was trained on what, how well it does, how runs compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitlet.analysis.report.markup import Child, Markup, joined, name_of, number_cell, table, tag
from vitlet.analysis.report.predictions import Examined
from vitlet.analysis.report.record import RunRecord, chosen_settings, repeats
from vitlet.statistics import Interval, calibration, paired_difference, student

Looked = Sequence[tuple[RunRecord, Examined]]
"""The runs of a report, each with what was found out about it."""

SPLITS = {"test": "test images", "val": "validation images", "train": "training images"}


def cards(looked: Looked) -> Markup:
    """One card per run: its state and its final numbers."""
    return tag("div", *(_card(number, *each) for number, each in enumerate(looked)), class_="cards")


def _card(number: int, record: RunRecord, found: Examined) -> Markup:
    config, scores = record.config, record.scores
    title = tag("h3", tag("i", class_=f"key s{number % 8}"), name_of(record.name))
    state = tag("p", record.progress(), class_=f"state {record.state}")
    big: list[Markup] = []
    if scores is not None:
        split, numbers = scores
        accuracy = record.accuracy(split)
        assert accuracy is not None
        interval = f"95 % interval {accuracy.low:.1f} to {accuracy.high:.1f}"
        what = f"top-1 on {int(numbers['count']):,} {SPLITS[split]}, {interval}"
        big = [tag("p", f"{accuracy.value:.1f} %", class_="big"), tag("p", what, class_="small")]
    facts = [("model", name_of(config.model)), ("parameters", _parameters(found.parameters))]
    if scores is not None:
        facts.append(("top-5", f"{scores[1]['top5']:.1f} %"))
        facts.append(("balanced", f"{scores[1]['balanced']:.1f} %"))
        facts.append(("loss", f"{scores[1]['loss']:.3f}"))
    if found.predictions is not None:
        facts.append(("ECE", f"{_ece(found):.1f} %"))
    facts.append(("tasks", name_of(_tasks(record)) if config.tasks else "labels only"))
    if record.best is not None and not config.pretrain:
        facts.append(("best epoch", str(record.best["epoch"])))
    if record.speed is not None:
        facts.append(("training", f"{record.speed:,.0f} images/s"))
    pairs = [tag("div", tag("dt", key), tag("dd", value)) for key, value in facts]
    return tag("article", title, state, *big, tag("dl", *pairs), class_="card")


def _parameters(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 1e6:.2f} M"


def _tasks(record: RunRecord) -> str:
    return ", ".join(f"{name} × {task.weight:g}" for name, task in record.config.tasks.items())


def _ece(found: Examined) -> float:
    assert found.predictions is not None
    return calibration(found.predictions.confidence, found.predictions.right).error


def comparison(looked: Looked) -> Markup:
    """All runs in one table, the difference to the first on the very same images, and repeated seeds together."""
    if len(looked) < 2:
        return Markup("")
    head = ["run", "state", "model", "tasks", "test top-1 %", "validation top-1 %", "ECE %", "parameters", "images/s"]
    rows: list[list[Child]] = []
    for number, (record, found) in enumerate(looked):
        test, val = record.accuracy("test"), record.accuracy("val")
        ece = _ece(found) if found.predictions is not None else None
        row: list[Child] = [
            tag("td", tag("i", class_=f"key s{number % 8}"), name_of(record.name)),
            record.state,
            name_of(record.config.model),
            name_of(_tasks(record) or "none"),
            _interval_cell(test),
            _interval_cell(val),
            number_cell(ece, "–" if ece is None else f"{ece:.1f}"),
            number_cell(found.parameters, _parameters(found.parameters)),
            number_cell(record.speed, "–" if record.speed is None else f"{record.speed:,.0f}"),
        ]
        rows.append(row)
    parts = [table(head, rows, numbers=range(4, 9)), *_class_notes(looked), _differences(looked), _repeats(looked)]
    return joined(parts)


def _interval_cell(found: Interval | None) -> Markup:
    if found is None:
        return number_cell(None, "–")
    return tag(
        "td",
        f"{found.value:.1f} ",
        tag("span", f"{found.low:.1f} to {found.high:.1f}", class_="small"),
        class_="number",
        data_sort=f"{found.value:.6f}",
    )


def _class_notes(looked: Looked) -> list[Markup]:
    """What to mind where the classes of runs differ."""
    first = looked[0][0]
    notes = []
    for record, _ in looked[1:]:
        own, others = set(record.classes), set(first.classes)
        if not own or not others or own == others:
            continue
        shared = len(own & others)
        notes.append(
            tag(
                "p",
                "The classes of ",
                name_of(record.name),
                " differ from those of ",
                name_of(first.name),
                f": {shared} in common, {len(own - others)} only in the former, {len(others - own)} only in the latter."
                " Their accuracies answer different questions; the table by class compares what they share.",
                class_="note",
            )
        )
    return notes


def _differences(looked: Looked) -> Markup:
    """Accuracy less that of the first run, on the same images."""
    first, base = looked[0][0], looked[0][1].predictions
    rows: list[list[Child]] = []
    for number, (record, found) in enumerate(looked[1:], start=1):
        other = found.predictions
        if base is None or other is None or record.classes != first.classes or base.keys() != other.keys():
            continue
        gap = paired_difference(base.right, other.right)
        verdict = "better" if gap.low > 0 else "worse" if gap.high < 0 else "no difference shown"
        shown = f"{gap.value:+.1f} ({gap.low:+.1f} to {gap.high:+.1f})"
        name = tag("td", tag("i", class_=f"key s{number % 8}"), name_of(record.name))
        rows.append([name, number_cell(gap.value, shown), f"{len(base.labels):,} {SPLITS[base.split]}", verdict])
    if not rows:
        return Markup("")
    title = tag("h3", "Difference to ", name_of(first.name))
    note = (
        "Top-1 in points, paired on the same images, 95 % interval: of the choice of images, not of the luck of a seed."
    )
    return joined(
        [title, tag("p", note, class_="small"), table(["run", "difference", "on", "verdict"], rows, numbers=[1])]
    )


def _repeats(looked: Looked) -> Markup:
    rows: list[list[Child]] = []
    for group in repeats([record for record, _ in looked]):
        for split in ("test", "val"):
            found = [accuracy.value for record in group if (accuracy := record.accuracy(split)) is not None]
            if len(found) < 2:
                continue
            mean = student(found)
            seeds = ", ".join(str(record.config.seed) for record in group)
            names = name_of(", ".join(record.name for record in group))
            rows.append([names, seeds, SPLITS[split], number_cell(mean.value, mean.percent())])
    if not rows:
        return Markup("")
    title = tag("h3", "Repeated with other seeds")
    note = tag("p", "Mean top-1 of runs that differ in their seed alone, with Student's 95 % interval.", class_="small")
    return joined([title, note, table(["runs", "seeds", "on", "mean top-1"], rows, numbers=[3])])


def settings(looked: Looked) -> Markup:
    """Settings that somebody chose, a column per run; all of them in a fold below."""
    columns: list[dict[str, Any]] = []
    for record, _ in looked:
        chosen: dict[str, Any] = {"data": record.config.data, "model": record.config.model}
        if record.config.tasks:
            chosen["task"] = _tasks(record)
        columns.append(chosen | chosen_settings(record.config, len(record.classes)) | _machine(record))
    keys = list(dict.fromkeys(key for column in columns for key in column))
    whole = [record.config.to_dict() for record, _ in looked]
    head = ["setting", *(name_of(record.name) for record, _ in looked)]
    rows = [_setting_row(key, [c.get(key, w.get(key)) for c, w in zip(columns, whole, strict=True)]) for key in keys]
    every = list(dict.fromkeys(key for column in whole for key in column))
    full = table(head, [_setting_row(key, [column.get(key) for column in whole]) for key in every], sortable=False)
    return joined(
        [
            tag(
                "p",
                "What differs from the defaults" + (", and between the runs." if len(looked) > 1 else "."),
                class_="small",
            ),
            table(head, rows, sortable=False),
            tag("details", tag("summary", "All settings, resolved"), full),
        ]
    )


def _machine(record: RunRecord) -> dict[str, Any]:
    """What is known of the machine."""
    found: dict[str, Any] = {"device": record.config.device}
    machine = record.result.get("machine")
    if isinstance(machine, dict):
        found = {"machine": ", ".join(f"{key} {value}" for key, value in machine.items())}
    if record.manifest.get("processes", 1) != 1:
        found["processes"] = record.manifest["processes"]
    return found


def _setting_row(key: str, values: Sequence[Any]) -> list[Child]:
    differs = len({str(value) for value in values}) > 1
    name = tag("td", tag("code", key), class_="differs" if differs else None)
    return [name, *(name_of("–" if value is None else _shown(value)) for value in values)]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={inner}" for key, inner in value.items()) or "–"
    if isinstance(value, (list, tuple)):
        return " × ".join(map(str, value)) if len(value) == 2 else ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def notes(looked: Looked) -> Markup:
    """What deserves saying: warnings of the runs, and what was left out of this report."""
    items = []
    for record, found in looked:
        sentences = [*record.result.get("warnings", ()), *found.left_out]
        if record.state != "finished":
            sentences.insert(0, f"{record.progress()}: the numbers are those of the epochs so far.")
        if record.scores is not None and record.scores[0] == "val":
            sentences.append("There are no test images: the validation images also chose the epoch, which flatters.")
        prefix = [name_of(record.name), ": "] if len(looked) > 1 else []
        items += [tag("li", *prefix, sentence) for sentence in dict.fromkeys(sentences)]
    return tag("ul", *items, class_="notes") if items else Markup("")
