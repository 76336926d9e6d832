"""The first part of a report: what was trained on what, how well it does, how runs compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitlet.analysis.report.predictions import Examined
from vitlet.analysis.report.record import RunRecord, chosen_settings, repeats
from vitlet.analysis.report.rendering import Keyed, Number, number
from vitlet.statistics import Interval, calibration, paired_difference, student
from vitlet.training.jobs import job_class

SPLIT_NAMES = {"test": "test images", "val": "validation images", "train": "training images"}


def result(runs: Sequence[Examined]) -> dict[str, Any]:
    """One card per run: its state, its final metrics, and remarks."""
    return {"cards": [_card(run) for run in runs], "notes": [note for run in runs for note in _notes(run)]}


def _card(run: Examined) -> dict[str, Any]:
    record, config = run.record, run.record.config
    card: dict[str, Any] = {"run": run, "state": record.state, "progress": record.progress(), "big": None}
    facts = [("model", config.model), ("images", _input(run)), ("parameters", _parameters(run))]
    if record.scores is not None:
        split, numbers = record.scores
        accuracy = record.accuracy(split)
        assert accuracy is not None
        card["big"] = f"{accuracy.value:.1f} %"
        card["on"] = (
            f"top-1 on {int(numbers['count']):,} {SPLIT_NAMES[split]},"
            f" 95 % interval {accuracy.low:.1f} to {accuracy.high:.1f}"
        )
        facts += [("top-5", f"{numbers['top5']:.1f} %"), ("balanced accuracy", f"{numbers['balanced']:.1f} %")]
        facts += [("loss", f"{numbers['loss']:.3f}")]
    if (error := _calibration_error(run)) is not None:
        facts.append(("ECE", f"{error:.1f} %"))
    facts.append(("tasks", _tasks(record) or "none"))
    if record.best is not None and job_class(config).labelled:
        facts.append(("best epoch", str(record.best["epoch"])))
    if record.speed is not None:
        facts.append(("training", f"{record.speed:,.0f} images/s"))
    return card | {"facts": facts}


def _input(run: Examined) -> str:
    """The sizes that the model has, whatever its name says: ``32 × 32 px, patches of 4 × 4 px``."""
    size = run.record.config.img_size
    parts = [] if size is None else [f"{size[0]} × {size[1]} px"]
    parts += [] if run.patch is None else [f"patches of {run.patch[0]} × {run.patch[1]} px"]
    return ", ".join(parts) or "of any size"


def _parameters(run: Examined) -> str:
    return "unknown" if run.parameters is None else f"{run.parameters / 1e6:.2f} M"


def _tasks(record: RunRecord) -> str:
    return ", ".join(f"{name} × {task.weight:g}" for name, task in record.config.tasks.items())


def _calibration_error(run: Examined) -> float | None:
    found = run.predictions
    return None if found is None else calibration(found.confidence, found.right).error


def _notes(run: Examined) -> list[tuple[str, str]]:
    """Warnings of the run, and what was left out of this report, with its name."""
    record = run.record
    sentences = [*record.result.get("warnings", ()), *run.left_out]
    if record.state != "finished":
        sentences.insert(0, f"{record.progress()}: the numbers are those of the epochs so far.")
    if record.scores is not None and record.scores[0] == "val":
        sentences.append(
            "There are no test images: the epoch was selected on the validation images, so this accuracy is optimistic."
        )
    return [(run.name, sentence) for sentence in dict.fromkeys(sentences)]


def comparison(runs: Sequence[Examined]) -> dict[str, Any] | None:
    """All runs in one table, the difference to the first on the very same images, and repeated seeds together."""
    if len(runs) < 2:
        return None
    head = ["run", "state", "model", "tasks", "test top-1 %", "validation top-1 %", "ECE %", "parameters", "images/s"]
    rows = [
        [
            Keyed(run.colour, run.name),
            run.record.state,
            f"{run.record.config.model}, {_input(run)}",
            _tasks(run.record) or "none",
            _interval(run.record.accuracy("test")),
            _interval(run.record.accuracy("val")),
            number(_calibration_error(run)),
            Number(run.parameters, _parameters(run)),
            number(run.record.speed, ",.0f"),
        ]
        for run in runs
    ]
    return {
        "first": runs[0].name,
        "table": {"head": head, "rows": rows},
        "classes": _class_notes(runs),
        "differences": _differences(runs),
        "repeats": _repeats(runs),
    }


def _interval(found: Interval | None) -> Number:
    if found is None:
        return Number(None, "–")
    return Number(found.value, f"{found.value:.1f}", f"{found.low:.1f} to {found.high:.1f}")


def _class_notes(runs: Sequence[Examined]) -> list[dict[str, Any]]:
    """How the classes of runs differ from those of the first."""
    first = set(runs[0].record.classes)
    classes = [(run.name, set(run.record.classes)) for run in runs[1:]]
    return [
        {"name": name, "shared": len(own & first), "own": len(own - first), "others": len(first - own)}
        for name, own in classes
        if own and first and own != first
    ]


def _differences(runs: Sequence[Examined]) -> dict[str, Any] | None:
    """Accuracy less that of the first run, on the same images."""
    first, base = runs[0].record, runs[0].predictions
    rows = []
    for run in runs[1:]:
        other = run.predictions
        if base is None or other is None or run.record.classes != first.classes or base.keys() != other.keys():
            continue
        gap = paired_difference(base.right, other.right)
        verdict = "better" if gap.low > 0 else "worse" if gap.high < 0 else "no difference shown"
        shown = Number(gap.value, f"{gap.value:+.1f} ({gap.low:+.1f} to {gap.high:+.1f})")
        rows.append([Keyed(run.colour, run.name), shown, f"{len(base.labels):,} {SPLIT_NAMES[base.split]}", verdict])
    return {"head": ["run", "difference", "on", "verdict"], "rows": rows} if rows else None


def _repeats(runs: Sequence[Examined]) -> dict[str, Any] | None:
    """Mean accuracy of runs that differ in their seed alone."""
    rows = []
    for group in repeats([run.record for run in runs]):
        for split in ("test", "val"):
            found = [accuracy.value for record in group if (accuracy := record.accuracy(split)) is not None]
            if len(found) < 2:
                continue
            mean = student(found)
            seeds = ", ".join(str(record.config.seed) for record in group)
            names = ", ".join(record.name for record in group)
            rows.append([names, seeds, SPLIT_NAMES[split], Number(mean.value, mean.percent())])
    return {"head": ["runs", "seeds", "on", "mean top-1"], "rows": rows} if rows else None


def settings_tables(runs: Sequence[Examined]) -> dict[str, Any]:
    """Tables of the settings that differ from the defaults, and of all settings; a column per run."""
    chosen = []
    for run in runs:
        config = run.record.config
        tasks = {"task": _tasks(run.record)} if config.tasks else {}
        named = {"data": config.data, "model": config.model} | tasks
        chosen.append(named | chosen_settings(config, len(run.record.classes)) | _machine(run.record))
    whole = [run.record.config.to_dict() for run in runs]
    both = [all_of | some for all_of, some in zip(whole, chosen, strict=True)]
    return {
        "runs": [run.name for run in runs],
        "chosen": [_setting(key, both) for key in dict.fromkeys(key for column in chosen for key in column)],
        "every": [_setting(key, whole) for key in dict.fromkeys(key for column in whole for key in column)],
    }


def _machine(record: RunRecord) -> dict[str, Any]:
    """The machine that the run was trained on, in words."""
    found: dict[str, Any] = {"device": record.config.device}
    machine = record.result.get("machine")
    if isinstance(machine, dict):
        found = {"machine": ", ".join(f"{key} {value}" for key, value in machine.items())}
    if record.manifest.get("processes", 1) != 1:
        found["processes"] = record.manifest["processes"]
    return found


def _setting(key: str, columns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    values = [column.get(key) for column in columns]
    return {"key": key, "values": [_shown(value) for value in values], "differs": len({str(v) for v in values}) > 1}


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{key}={inner}" for key, inner in value.items()) or "–"
    if isinstance(value, (list, tuple)):
        return (" × " if len(value) == 2 else ", ").join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
