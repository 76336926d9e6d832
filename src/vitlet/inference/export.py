"""A run as files that other programs read, checked against the model itself before anything is handed over."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from vitlet import __version__
from vitlet.errors import VitletError, first_line, require_extra
from vitlet.inference.exported import CARD, EXPORT_MANIFEST, EXPORT_WEIGHTS, Exported, Format, is_export, load_network
from vitlet.inference.mixture import ENSEMBLE
from vitlet.inference.model_card import model_card
from vitlet.inference.predict import Predictor
from vitlet.inference.runtimes import INPUT, OUTPUTS, Dtype, TorchNetwork, import_openvino
from vitlet.training.files import checksum, sync
from vitlet.training.run_folder import run_weights
from vitlet.training.search_folder import best_member, is_search, used_members

TOLERANCE = 1e-4
"""Largest difference of a logit in float32; beyond it an export is refused."""

CHECKED = 32
"""Images that both are shown."""


@dataclass(frozen=True)
class Parity:
    """Largest difference between the logits of an export and of the model, and the number of images.

    Attributes:
        images: how many; they are given one alone, then the rest together, for any number must do.
        of: what they are.
        largest: difference of a logit.
        same: share of images with the same first guess.
    """

    images: int
    of: str
    largest: float
    same: float

    def __str__(self) -> str:
        same = f"same first guess on {self.same:.0%} of {self.images} {self.of}"
        return f"largest difference of a logit {self.largest:.1e}, {same}"


def export_run(
    run: Path, form: Format, output: Path | None = None, *, dtype: Dtype = "float32", licence: str = "unknown"
) -> tuple[Path, Parity]:
    """Write an export folder atomically.

    Args:
        run: folder of a run, or of a search: its ensemble becomes one network that answers with the mean.
        form: what to write.
        output: folder to be; ``RUN/export/FORMAT`` by default.
        dtype: dtype of the weights, and where the program can, of the arithmetic.
        licence: licence of the weights, for the model card.

    Returns:
        The folder, and how it compares with the model.
    """
    if is_export(run):
        raise VitletError(f"{run} is an export itself: export the run that it was made from.")
    members = used_members(run) if is_search(run) else {run: 1.0}
    if form == "timm" and len(members) > 1:
        raise VitletError(
            f"{run} answers with the mean of {len(members)} networks, which timm's folders do not hold as one. Take"
            f" --format safetensors, torch, onnx or openvino, or its best single run: {best_member(run)}"
        )
    if form == "onnx" and dtype == "bfloat16":
        raise VitletError("onnxruntime has no bfloat16 on a CPU: export to openvino, or leave --dtype out.")
    target = output or run / "export" / (form if dtype == "float32" else f"{form}-{dtype}")
    if target.exists():
        raise VitletError(f"{target} already exists. Choose another --output, or remove it.")
    _require(form)
    predictor = Predictor.load(run, device="cpu")
    described = [
        json.loads(run_weights(member).with_name("config.json").read_text(encoding="utf-8")) for member in members
    ]
    built = _described(described, list(members.values()), predictor)
    about = Exported(form, dtype, *built, predictor.temperature, predictor.classes)
    beside = target.with_name(f".{target.name}.vitlet-export")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        _write(predictor, about, described[0], beside, licence)
        parity = _compare(predictor, beside, about)
        if dtype == "float32" and not parity.largest <= TOLERANCE:
            raise VitletError(
                f"the {form} export differs from the model: {parity}. At most {TOLERANCE:g} is allowed; nothing"
                " was written."
            )
        (beside / CARD).write_text(model_card(predictor, about, licence=licence, parity=str(parity)), encoding="utf-8")
        _finish(beside, about, parity)
        beside.rename(target)
    except OSError as problem:
        raise VitletError(f"cannot write {target}: {first_line(problem)}.") from problem
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target, parity


def _described(
    found: Sequence[Mapping[str, Any]], weights: Sequence[float], predictor: Predictor
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Architecture, arguments and preprocessing of the export, in timm's format for each model in it."""
    kept = ("input_size", "crop_pct", "interpolation", "mean", "std")
    each = [
        {
            "architecture": one["architecture"],
            "model_args": one["model_args"],
            "preprocessing": {name: one["pretrained_cfg"][name] for name in kept},
        }
        for one in found
    ]
    if len(each) == 1:
        return each[0]["architecture"], each[0]["model_args"], each[0]["preprocessing"]
    own, channels = predictor.preprocess, each[0]["preprocessing"]["input_size"][0]
    common = {"input_size": [channels, *own.size], "crop_pct": own.crop_pct, "mean": own.mean, "std": own.std}
    return ENSEMBLE, {"members": each, "weights": list(weights)}, {**each[0]["preprocessing"], **common}


def _require(form: Format) -> None:
    """Refuse at once what needs an extra that is not there."""
    if form == "onnx":
        for module in ("onnx", "onnxscript", "onnxruntime"):
            require_extra(module, "onnx", "an export to ONNX")
    elif form == "openvino":
        import_openvino()


def _write(predictor: Predictor, about: Exported, described: Mapping[str, Any], folder: Path, licence: str) -> None:
    """The files of a format."""
    if about.format in ("safetensors", "timm", "torch"):
        kept = getattr(torch, about.dtype)
        weights = predictor.model.state_dict().items()
        tensors = {key: value.to(kept).contiguous() if value.is_floating_point() else value for key, value in weights}
        save_file(tensors, folder / EXPORT_WEIGHTS, metadata={"format": "pt", "vitlet": json.dumps(asdict(about))})
    if about.format == "timm":
        settings = {**described["pretrained_cfg"], "license": licence}
        text = json.dumps({**described, "pretrained_cfg": settings}, indent=2, ensure_ascii=False)
        (folder / "config.json").write_text(text, encoding="utf-8")
    if about.format in ("torch", "onnx", "openvino"):
        _write_program(predictor, about, folder)


def _write_program(predictor: Predictor, about: Exported, folder: Path) -> None:
    """The model as a graph of any number of images."""
    network = TorchNetwork(deepcopy(predictor.model), about.dtype if about.format == "torch" else "float32").eval()
    example = torch.zeros(2, *about.preprocessing["input_size"])
    count = torch.export.Dim("count", min=1, max=65536)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of the exporters, on their own insides; parity is checked
            program = torch.export.export(network, (example,), dynamic_shapes=({0: count},), strict=False)
            if about.format == "torch":
                torch.export.save(program, folder / "model.pt2")
            else:
                (_save_onnx if about.format == "onnx" else _save_openvino)(program, about, folder)
    except Exception as problem:  # exporters complain in many types
        raise VitletError(
            f"{about.architecture} cannot be exported to {about.format}: {first_line(problem)}. Its weights can:"
            " --format safetensors or timm."
        ) from problem


def _save_onnx(program: Any, about: Exported, folder: Path) -> None:
    """Save an ONNX graph; its metadata hold preprocessing and class names."""
    made = torch.onnx.export(
        program, input_names=[INPUT], output_names=list(OUTPUTS), dynamo=True, external_data=False, verbose=False
    )
    assert made is not None
    made.model.metadata_props["vitlet"] = json.dumps(asdict(about))
    made.save(folder / "model.onnx")


def _save_openvino(program: Any, about: Exported, folder: Path) -> None:
    """Save an OpenVINO model; with bfloat16 weights it has half the size."""
    openvino = import_openvino()
    model = openvino.convert_model(program)
    model.inputs[0].get_tensor().set_names({INPUT})
    for output, name in zip(model.outputs, OUTPUTS, strict=True):
        output.get_tensor().set_names({name})
    model.set_rt_info(json.dumps(asdict(about)), ["vitlet"])
    openvino.save_model(model, str(folder / "model.xml"), compress_to_fp16=about.dtype == "bfloat16")


@torch.inference_mode()
def _compare(predictor: Predictor, folder: Path, about: Exported) -> Parity:
    """Read the files back as `vitlet predict` does, and ask both."""
    images, of = _check_images(predictor)
    networks = [load_network(folder, about).eval()]
    if about.format == "torch":  # written a moment ago, so it may be opened
        networks.append(torch.export.load(folder / "model.pt2").module())
    wanted = predictor.network(images)[0].repeat(len(networks), 1)
    found = torch.cat([network(part)[0] for network in networks for part in (images[:1], images[1:])])
    same = (wanted.argmax(-1) == found.argmax(-1)).float().mean()
    return Parity(len(images), of, float((wanted - found).abs().max()), float(same))


def _check_images(predictor: Predictor) -> tuple[Tensor, str]:
    """Some of the run's validation or test images, evenly spaced; noise if the data is not available."""
    preprocess, channels = predictor.preprocess, predictor.config.in_chans
    try:
        images, what = predictor.images()
        places = torch.linspace(0, len(images) - 1, min(CHECKED, len(images))).long().unique().tolist()
        seen = [preprocess(images.image(place, channels)) for place in places]
        if len(seen) > 1:
            return torch.stack(seen), f"images of {Path(what).name}"
    except VitletError:
        pass
    draw = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (CHECKED, channels, *preprocess.size), generator=draw, dtype=torch.uint8)
    return preprocess.normalize(noise), "random images (the run's data is not available)"


def _finish(folder: Path, about: Exported, parity: Parity) -> None:
    """The manifest last: it names every other file with its checksum."""
    files = sorted(path for path in folder.iterdir() if path.name != CARD)  # a card may be edited
    manifest = {"vitlet": __version__, **asdict(about), "parity": asdict(parity)}
    manifest["sha256"] = {path.name: checksum(path) for path in files}
    (folder / EXPORT_MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False), encoding="utf-8")
    for path in folder.iterdir():
        path.chmod((folder / EXPORT_MANIFEST).stat().st_mode)  # safetensors lets the owner alone read
        sync(path)
