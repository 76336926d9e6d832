"""What a network is, for whoever is handed it: data, recipe, numbers, use, limits, licence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vitlet.inference.exported import MANIFEST, Exported
from vitlet.inference.predict import Predictor
from vitlet.statistics import wilson
from vitlet.training.run_folder import read_rows

SHOWN = 30
"""Class names on the card; all are in the manifest."""

_SETTINGS = ("epochs", "batch_size", "lr", "weight_decay", "drop_path", "aug", "smoothing", "mixup", "cutmix", "seed")

_PROGRAM = {
    "onnx": """import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
logits, embedding = session.run(None, {"images": images})  # float32, (any number, CHANNELS, HEIGHT, WIDTH)""",
    "openvino": """import openvino

network = openvino.Core().compile_model("model.xml", "CPU")
logits = network(images)["logits"]  # float32, (any number, CHANNELS, HEIGHT, WIDTH)""",
    "torch": """import torch

network = torch.export.load("model.pt2").module()  # runs pickles: only if you trust where the file came from
logits, embedding = network(images)  # float32, (any number, CHANNELS, HEIGHT, WIDTH)""",
    "timm": """import timm
import vitlet  # for networks that timm does not have

model = timm.create_model("local-dir:FOLDER", pretrained=True).eval()  # hf-hub:OWNER/NAME once it is on the hub
logits = model(images)  # float32, (any number, CHANNELS, HEIGHT, WIDTH)""",
    "safetensors": """from pathlib import Path
from vitlet.inference.predict import Predictor

predictor = Predictor.load(Path("FOLDER"))
print(predictor.predict([Path("image.jpg")]))""",
}


def model_card(predictor: Predictor, about: Exported, *, licence: str, parity: str) -> str:
    """Markdown with the header that the Hugging Face hub reads."""
    assert predictor.source is not None
    name = predictor.source.resolve().name
    result = _result(predictor.source)
    header = yaml.safe_dump(_header(predictor, about, name, licence, result), sort_keys=False, allow_unicode=True)
    parts = [
        f"# {_inline(name)}",
        f"`{about.architecture}`: {len(about.classes)} classes of images of {about.channels} x"
        f" {predictor.preprocess.size[0]} x {predictor.preprocess.size[1]}, as {about.format} in {about.dtype}."
        " Trained and exported with vitlet.",
        _use(about, predictor),
        _preprocessing(about),
        _data(predictor, about, result),
        _recipe(predictor),
        _results(predictor, result),
        _limits(),
        f"## Licence\nOf these weights: {licence}."
        + (" Whoever shares them needs to say; the data may have a say in it." if licence == "unknown" else ""),
        f"## Checks\nAgainst the network it was made from: {parity}.",
    ]
    return f"---\n{header}---\n" + "\n\n".join(parts) + "\n"


def _result(run: Path) -> dict[str, Any]:
    """The run's result, or of a run that is not finished the best of its rows."""
    if (run / "result.json").is_file():
        found: dict[str, Any] = json.loads((run / "result.json").read_text(encoding="utf-8"))
        return found
    rows = [row for row in read_rows(run) if "val/top1" in row]
    best = max(rows, key=lambda row: float(row["val/top1"]), default=None)
    return {"val": {key: best[f"val/{key}"] for key in ("count", "top1", "top5", "loss")}} if best else {}


def _header(
    predictor: Predictor, about: Exported, name: str, licence: str, result: Mapping[str, Any]
) -> dict[str, Any]:
    library = {"onnx": "onnx", "openvino": "openvino"}.get(about.format, "timm")
    header: dict[str, Any] = {
        "license": licence,
        "library_name": library,
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "vitlet", library],
    }
    split = next((split for split in ("test", "val") if result.get(split)), None)
    if split:
        data = Path(predictor.config.data).name
        metric = {"type": "accuracy", "name": f"top-1, {split}", "value": round(result[split]["top1"] / 100, 4)}
        task = {"type": "image-classification"}
        results = [{"task": task, "dataset": {"name": data, "type": "imagefolder"}, "metrics": [metric]}]
        header["model-index"] = [{"name": name, "results": results}]
    return header


def _use(about: Exported, predictor: Predictor) -> str:
    height, width = predictor.preprocess.size
    code = _PROGRAM[about.format].replace("CHANNELS", str(about.channels))
    code = code.replace("HEIGHT", str(height)).replace("WIDTH", str(width))
    said = f"## Use\n`vitlet predict FOLDER image.jpg` does everything below. By hand:\n\n```python\n{code}\n```\n"
    if about.temperature != 1.0:
        return said + f"Probabilities: softmax of logits / {about.temperature:.4f} (fitted on validation images)."
    return said + "Probabilities: softmax of the logits. They were not calibrated."


def _preprocessing(about: Exported) -> str:
    own, (height, width) = about.settings, about.settings["input_size"][1:]
    return (
        "## Preprocessing\nUpright by EXIF, "
        + {1: "grey", 3: "RGB"}.get(about.channels, f"{about.channels} channels")
        + f", transparency on white; resized (bicubic, antialiased, on 8-bit values) until the image covers {height} x"
        f" {width} / {own['crop_pct']}; centre crop of {height} x {width}; divided by 255, less mean"
        f" {list(own['mean'])}, divided by {list(own['std'])}. The same numbers are in `{MANIFEST}`."
    )


def _data(predictor: Predictor, about: Exported, result: Mapping[str, Any]) -> str:
    shown = ", ".join(_inline(name) for name in about.classes[:SHOWN])
    more = f" and {len(about.classes) - SHOWN} more" if len(about.classes) > SHOWN else ""
    note = f" ({_plain(str(result['data']))})" if result.get("data") else ""
    return f"## Data\n{_inline(Path(predictor.config.data).name)}{note}. Classes: {shown}{more}."


def _recipe(predictor: Predictor) -> str:
    config = predictor.config
    plain = config.to_dict()
    tasks = ", ".join(f"{name} (weight {task.weight:g})" for name, task in config.tasks.items()) or "none"
    start = "released weights of timm" if config.pretrained else "other weights" if config.init else "random weights"
    rows = [f"| {key} | {plain[key]} |" for key in _SETTINGS]
    rows += [f"| tasks beside the labels | {tasks} |", f"| started from | {start} |"]
    return "## Recipe\n| setting | value |\n|---|---|\n" + "\n".join(rows)


def _results(predictor: Predictor, result: Mapping[str, Any]) -> str:
    rows = []
    for split, name in (("val", "validation (chose the epoch)"), ("test", "test")):
        scores = result.get(split)
        if scores:
            top1 = wilson(scores["count"] * scores["top1"] / 100, int(scores["count"]))
            rows.append(f"| {name} | {int(scores['count'])} | {top1.percent()} | {scores['loss']:.3f} |")
    if not rows:
        return "## Results\nNot measured."
    assert predictor.source is not None
    done = (predictor.source / "result.json").is_file()
    unfinished = "" if done else "\n\nThe run was not finished when this was exported: its best epoch so far."
    table = "| images | count | top-1, 95 % interval | loss |\n|---|---|---|---|\n" + "\n".join(rows)
    return f"## Results\n{table}{unfinished}"


def _limits() -> str:
    return (
        "## Intended use and limits\nTo sort images of the kind it was trained on into the classes above. It names one"
        " of them for any image, also for one that shows none of them. How it does on images from elsewhere, for"
        " groups of people, or against someone who wants it to fail was not measured; do not let it decide about"
        " people. (Whoever shares it: say here what it is for.)"
    )


def _inline(text: str) -> str:
    """A name as Markdown code: nothing in it is read as anything else."""
    return f"`{_plain(text)}`"


def _plain(text: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in text).replace("`", "'").replace("|", "/")
