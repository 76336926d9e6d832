"""Explanations of a trained model: attention by layer and head, rollout, class activation map, token positions.

Rollout follows Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020; the class map and the places
are in `class_map` and `task_heads`. A model that lacks one of them gets the others, and a remark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitlet.analysis.class_map import class_map
from vitlet.analysis.task_heads import Locator
from vitlet.backbones import TimmBackbone
from vitlet.data.decode import read_image
from vitlet.data.preprocess import Preprocess
from vitlet.errors import VitletError, first_line
from vitlet.inference.predict import Predictor
from vitlet.models.factory import load_exported
from vitlet.tasks.task import Places
from vitlet.tokens.attention import AttentionMap
from vitlet.tokens.features import Needs
from vitlet.tokens.views import View
from vitlet.training.build import find_device
from vitlet.training.jobs import job_class
from vitlet.training.run_folder import read_config, run_weights


@dataclass(frozen=True)
class Explanation:
    """One image seen by one model.

    Attributes:
        pixels: what the model saw, ``(height, width, 3)`` in 0..1.
        guess: the most likely class and its probability; None without a classifier.
        received: by layer, attention that each place of the grid receives, per head: ``(h, H, W)``.
        rollout: attention traced through all layers, ``(H, W)``; None where attention is within windows.
        distances: by layer, mean attention distance in patches.
        uniform: by layer, the distance of attention that is spread evenly.
        evidence: for the guess, at each place of a token grid, ``(H, W)`` from 0 up; see `vitlet.analysis.class_map`.
        places: where a task's head puts the tokens; see `vitlet.analysis.task_heads`.
        left_out: a remark on each map that this model does not have.
    """

    pixels: Any
    guess: tuple[str, float] | None
    received: list[Tensor]
    rollout: Tensor | None
    distances: list[float]
    uniform: list[float]
    evidence: Tensor | None = None
    places: Places | None = None
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explainer:
    """A model with its preprocessing, and its localization head if there is one.

    Attributes:
        model: on its device, in evaluation mode.
        preprocess: preprocessing of its images.
        classes: their names; empty without a classifier.
        in_chans: channels of its images.
        locator: locator of the same run.
        no_locator: why there is none.
        temperature: that its logits are divided by, as `vitlet calibrate` found it.
    """

    model: nn.Module
    preprocess: Preprocess
    classes: Sequence[str]
    in_chans: int = 3
    locator: Locator | None = None
    no_locator: str = ""
    temperature: float = 1.0

    @staticmethod
    def of(predictor: Predictor, run: Path) -> Explainer:
        """Create from a predictor, with the task heads of its run folder."""
        heads = _locator(run, str(predictor.device))
        own = predictor.model, predictor.preprocess, predictor.classes, predictor.config.in_chans
        return Explainer(*own, *heads, temperature=predictor.temperature)

    @staticmethod
    def load(run: Path, *, device: str = "auto") -> Explainer:
        """Read a run folder, pre-trained ones too."""
        config = read_config(run)
        if job_class(config).labelled:
            return Explainer.of(Predictor.load(run, device=device), run)
        folder = run_weights(run).parent
        try:
            own = json.loads((folder / "config.json").read_text(encoding="utf-8"))["pretrained_cfg"]
            size = tuple(own["input_size"][1:])
            preprocess = Preprocess(size, crop_pct=own["crop_pct"], mean=own["mean"], std=own["std"])
            model = load_exported(folder).to(find_device(device)).eval()
        except Exception as problem:  # damaged files fail in many ways
            raise VitletError(f"cannot load the weights in {folder}: {first_line(problem)}.") from problem
        return Explainer(model, preprocess, (), config.in_chans, *_locator(run, device))

    def __call__(self, image: Tensor) -> Explanation:
        """Explain one decoded image, uint8 ``(channels, height, width)``; not inside `torch.inference_mode`."""
        pixels = self.preprocess.pixels(image)
        batch = self.preprocess.normalize(pixels)[None].to(next(self.model.parameters()).device)
        backbone = TimmBackbone(
            self.model, img_size=self.preprocess.size, in_chans=self.in_chans, explicit_tokens=10**9
        )
        left_out: list[str] = []
        maps: list[AttentionMap] = []
        try:
            with torch.inference_mode():
                maps = list(backbone(View(batch), Needs(attention="all")).attention.values())
        except VitletError as problem:
            left_out.append(f"attention: {problem}")
        finally:
            backbone.remove()
        evidence, guess = self._evidence(backbone, batch, left_out)
        if self.no_locator:
            left_out.append(f"localization map: {self.no_locator}")
        return Explanation(
            pixels=displayable(pixels),
            guess=guess,
            received=[received(each) for each in maps],
            rollout=rollout(maps),
            distances=[distance_of(each) for each in maps],
            uniform=[each.shape.uniform_distance for each in maps],
            evidence=evidence,
            places=self.locator(batch) if self.locator else None,
            left_out=tuple(left_out),
        )

    def _evidence(
        self, backbone: TimmBackbone, batch: Tensor, left_out: list[str]
    ) -> tuple[Tensor | None, tuple[str, float] | None]:
        """The class map of the only image, and the class that it is for."""
        if not self.classes:
            left_out.append("class activation map: the model was trained without labels and has no classifier.")
            return None, None
        try:
            found = class_map(backbone, batch)
        except VitletError as problem:
            left_out.append(f"class activation map: {problem}")
            return None, None
        probability, label = self.probabilities(found.logits[0]).max(-1)
        return found.evidence[0].cpu(), (self.classes[int(label)], float(probability))

    def probabilities(self, logits: Tensor) -> Tensor:
        """Class probabilities, calibrated if the run is."""
        return (logits.float() / self.temperature).softmax(-1)

    def file(self, path: Path) -> Explanation:
        """Explain one image file."""
        return self(read_image(path, self.in_chans))


def _locator(run: Path, device: str) -> tuple[Locator | None, str]:
    """The localization head of a run, or why there is none."""
    try:
        return Locator.load(run, device=device), ""
    except VitletError as problem:
        return None, str(problem)


def received(found: AttentionMap) -> Tensor:
    """Attention that each token position receives, by head ``(h, H, W)``: from the class token, else the mean."""
    shape = found.shape
    if shape.prefix and shape.windows == 1:
        flat = found.weights[0, :, 0, shape.prefix :]  # h, N
    else:
        flat = found.patches[0].mean(-2).transpose(0, 1).flatten(1)  # h, G*N
        if found.cells is not None:
            places = found.cells.flatten()
            inside = (places >= 0) & (places < shape.height * shape.width)
            laid = flat.new_zeros(len(flat), shape.height * shape.width)
            flat = laid.index_add(1, places[inside], flat[:, inside])
    return flat.float().cpu().view(-1, shape.height, shape.width)


def rollout(maps: Sequence[AttentionMap]) -> Tensor | None:
    """Attention from the class token, or on average, through all layers, skip connections counted as half."""
    shapes = {(each.shape.height, each.shape.width, each.shape.prefix, each.shape.windows) for each in maps}
    if len(shapes) != 1 or maps[0].shape.windows != 1:
        return None
    size = maps[0].weights.shape[-1]
    through = torch.eye(size, device=maps[0].weights.device)
    for each in maps:
        mixed = 0.5 * each.weights[0].float().mean(0) + 0.5 * torch.eye(size, device=through.device)
        through = mixed / mixed.sum(-1, keepdim=True) @ through
    prefix = maps[0].shape.prefix
    flat = through[0, prefix:] if prefix else through.mean(0)
    return flat.cpu().view(maps[0].shape.height, maps[0].shape.width)


def distance_of(found: AttentionMap) -> float:
    """Mean attention distance of one layer, in patches."""
    return float(found.read(lambda rows, distances: distances).distance.mean())


def displayable(image: Tensor) -> Any:
    """An image for the eye: ``(height, width, 3)`` in 0..1, of the first three channels or the only one."""
    colours = image[:3] if len(image) >= 3 else image[:1].expand(3, -1, -1)
    return colours.permute(1, 2, 0).numpy().astype(np.float32) / 255
