"""What a trained network attends to: maps per layer and head, rollout, and how far it looks, as pictures.

Rollout follows Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitlet.attention import AttentionMap
from vitlet.backbone import TimmBackbone
from vitlet.data.decode import read_image
from vitlet.errors import VitletError
from vitlet.features import Needs
from vitlet.predict import Predictor
from vitlet.views import View


@dataclass(frozen=True)
class Explanation:
    """One image seen by one network.

    Attributes:
        pixels: what the network saw, ``(height, width, 3)`` in 0..1.
        guess: the most likely class and its probability.
        received: by layer, attention that each place of the grid receives, per head: ``(h, H, W)``.
        rollout: attention traced through all layers, ``(H, W)``; None where attention is within windows.
        distances: by layer, mean attention distance in patches.
        uniform: by layer, the distance of attention that is spread evenly.
    """

    pixels: Any
    guess: tuple[str, float]
    received: list[Tensor]
    rollout: Tensor | None
    distances: list[float]
    uniform: list[float]


@torch.inference_mode()
def explain_image(predictor: Predictor, path: Path) -> Explanation:
    """Read every attention map of one forward pass."""
    backbone = TimmBackbone(
        predictor.model, img_size=predictor.preprocess.size, in_chans=predictor.config.in_chans, explicit_tokens=10**9
    )
    image = predictor.preprocess.pixels(read_image(path, predictor.config.in_chans))
    batch = predictor.preprocess.normalize(image)[None].to(predictor.device)
    try:
        features = backbone(View(batch), Needs(attention="all"))
    finally:
        backbone.remove()
    assert features.logits is not None
    probability, label = features.logits[0].float().softmax(-1).max(-1)
    maps = list(features.attention.values())
    return Explanation(
        pixels=_displayable(image),
        guess=(predictor.classes[int(label)], float(probability)),
        received=[received(each) for each in maps],
        rollout=rollout(maps),
        distances=[distance_of(each) for each in maps],
        uniform=[each.shape.uniform_distance for each in maps],
    )


def received(found: AttentionMap) -> Tensor:
    """Attention each place receives, by head ``(h, H, W)``: from the class token if there is one, else the mean."""
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


def _displayable(image: Tensor) -> Any:
    colours = image[:3] if len(image) >= 3 else image[:1].expand(3, -1, -1)
    return colours.permute(1, 2, 0).numpy().astype(np.float32) / 255


def explain_runs(runs: Sequence[Path], images: Sequence[Path], folder: Path, *, device: str = "auto") -> list[Path]:
    """Pictures of what runs attend to: one per run and image, and one of the distances of all runs.

    Returns:
        The pictures that were written.
    """
    if folder.exists() and not folder.is_dir():
        raise VitletError(f"{folder} is a file; the pictures need a folder.")
    explained = {
        run: [explain_image(predictor, path) for path in images]
        for run, predictor in ((run, Predictor.load(run, device=device)) for run in runs)
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, (run, found) in enumerate(explained.items(), start=1):
        for path, explanation in zip(images, found, strict=True):
            prefix = f"{number}-{run.name}-" if len(runs) > 1 else ""
            written.append(folder / f"{prefix}{path.stem}.png")
            draw_attention(explanation, written[-1])
    written.append(folder / "distance.png")
    draw_distances({str(run): found for run, found in explained.items()}, written[-1])
    return written


def draw_attention(explanation: Explanation, path: Path) -> None:
    """The image, its rollout, and a row of heads for every layer."""
    plt = _pyplot()
    heads = max(len(maps) for maps in explanation.received)
    rows, columns = len(explanation.received) + 1, heads + 1
    figure, axes = plt.subplots(rows, columns, figsize=(1.5 * columns, 1.6 * rows), layout="constrained", squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    name, probability = explanation.guess
    axes[0, 0].imshow(explanation.pixels)
    axes[0, 0].set_title(f"{_plain(name)} {probability:.0%}", fontsize=8)
    if explanation.rollout is not None:
        _overlay(axes[0, 1], explanation.pixels, explanation.rollout, "rollout")
    for layer, maps in enumerate(explanation.received):
        title = f"layer {layer + 1}, {explanation.distances[layer]:.1f} patches"
        _overlay(axes[layer + 1, 0], explanation.pixels, maps.mean(0), title)
        for head, single in enumerate(maps):
            _overlay(axes[layer + 1, head + 1], explanation.pixels, single, f"head {head + 1}")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_distances(explained: Mapping[str, Sequence[Explanation]], path: Path) -> None:
    """Mean attention distance by layer, a line for each run, beside that of even attention."""
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(6, 3.8), layout="constrained")
    for run, found in explained.items():
        axis.plot(
            range(1, len(found[0].distances) + 1),
            np.mean([each.distances for each in found], axis=0),
            marker="o",
            label=_plain(run),
        )
    first = next(iter(explained.values()))[0]
    axis.plot(range(1, len(first.uniform) + 1), first.uniform, color="0.5", linestyle=":", label="spread evenly")
    highest = max(first.uniform + [value for found in explained.values() for each in found for value in each.distances])
    layers = range(1, len(first.uniform) + 1)
    axis.set(xlabel="layer", ylabel="mean attention distance, patches", ylim=(0, 1.25 * highest), xticks=layers)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _overlay(axis: Any, pixels: Any, values: Tensor, title: str) -> None:
    height, width = pixels.shape[:2]
    axis.imshow(pixels)
    axis.imshow(values.numpy(), cmap="inferno", alpha=0.65, extent=(0, width, height, 0), interpolation="nearest")
    axis.set(xlim=(0, width), ylim=(height, 0))
    axis.set_title(title, fontsize=8)


def _plain(text: str) -> str:
    """Names as they are: no mathematics, no line breaks."""
    shown = "".join(sign if sign.isprintable() else " " for sign in text).replace("$", r"\$")
    return shown if len(shown) <= 40 else shown[:39] + "…"


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
