"""The model card of an export: data, recipe, numbers, use, limits, licence; its text is ``model_card.md.jinja``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader

from vitlet.inference.exported import EXPORT_MANIFEST, Exported
from vitlet.inference.predict import Predictor
from vitlet.statistics import wilson
from vitlet.training.run_folder import read_rows
from vitlet.training.search_folder import is_search, read_search

CARD_CLASSES = 30
"""Class names on the card; all are in the manifest."""

_SETTINGS = ("epochs", "batch_size", "lr", "weight_decay", "drop_path", "aug", "smoothing", "mixup", "cutmix", "seed")
_SPLITS = {"val": "validation (chose the epoch)", "test": "test"}


def model_card(predictor: Predictor, about: Exported, *, licence: str, parity: str) -> str:
    """Markdown with the header that the Hugging Face hub reads."""
    assert predictor.source is not None
    config, name, result = predictor.config, predictor.source.resolve().name, _result(predictor.source)
    header = _header(Path(config.data).name, about, name, licence, result)
    measured = {title: result[split] for split, title in _SPLITS.items() if result.get(split)}
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"plain": _plain, "code": lambda text: f"`{_plain(text)}`"}
    return environment.get_template("model_card.md.jinja").render(
        header=yaml.safe_dump(header, sort_keys=False, allow_unicode=True),
        name=name,
        about=about,
        manifest=EXPORT_MANIFEST,
        data=Path(config.data).name,
        most=CARD_CLASSES,
        result=result,
        settings=_SETTINGS,
        config=config.to_dict(),
        tasks=", ".join(f"{name} (weight {task.weight:g})" for name, task in config.tasks.items()),
        scores=[
            (title, int(each["count"]), wilson(each["count"] * each["top1"] / 100, int(each["count"])), each["loss"])
            for title, each in measured.items()
        ],
        finished=(predictor.source / "result.json").is_file() or is_search(predictor.source),
        licence=licence,
        parity=parity,
    )


def _result(run: Path) -> dict[str, Any]:
    """The run's result, or of a run that is not finished the best of its rows; of a search that of what it uses."""
    if is_search(run):
        return {"test": read_search(run).test}
    if (run / "result.json").is_file():
        return dict(json.loads((run / "result.json").read_text(encoding="utf-8")))
    rows = [row for row in read_rows(run) if "val/top1" in row]
    best = max(rows, key=lambda row: float(row["val/top1"]), default=None)
    return {"val": {key: best[f"val/{key}"] for key in ("count", "top1", "top5", "loss")}} if best else {}


def _header(data: str, about: Exported, name: str, licence: str, result: Mapping[str, Any]) -> dict[str, Any]:
    library = {"onnx": "onnx", "openvino": "openvino"}.get(about.format, "timm")
    header: dict[str, Any] = {
        "license": licence,
        "library_name": library,
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "vitlet", library],
    }
    split = next((split for split in ("test", "val") if result.get(split)), None)
    if split:
        metric = {"type": "accuracy", "name": f"top-1, {split}", "value": round(result[split]["top1"] / 100, 4)}
        task = {"type": "image-classification"}
        results = [{"task": task, "dataset": {"name": data, "type": "imagefolder"}, "metrics": [metric]}]
        header["model-index"] = [{"name": name, "results": results}]
    return header


def _plain(text: Any) -> str:
    """A text in which nothing is read as Markdown code or as the end of a table's cell."""
    return "".join(sign if sign.isprintable() else " " for sign in str(text)).replace("`", "'").replace("|", "/")
