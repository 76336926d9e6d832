"""Which networks have attention maps over their token grid, and whether the maps are right.

``python benchmarks/attention_models.py`` surveys every model that timm registers without memory for its weights
(PyTorch's meta device), and runs the smallest one of each family with maps for real: its logits with all maps asked
for are compared with the bare model's, and it is checked that a map's tokens lie where their coordinates say, by
changing the image at one cell and looking for the token whose row and column change most, within one cell. Fewer are
found where a network mixes all places before a layer (LeViT and others shrink their grid by attention or large
kernels). Writes ``results/attention_models.csv``, one line per family; about 25 minutes on one core.
"""

from __future__ import annotations

import csv
import warnings
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import model_entrypoint
from torch import Tensor

import vitlet
import vitlet.models
from models import header
from vitlet.tokens.attention import AttentionMap
from vitlet.tokens.features import Needs
from vitlet.tokens.views import View

RESULTS = Path(__file__).parent / "results" / "attention_models.csv"
LARGE = 150_000_000  # parameters
CELLS = 6
"""Cells of the image that are changed, one after another."""


@dataclass
class Family:
    """What became of one module of timm.

    Attributes:
        names: models in it, and ``with_maps``, those of which a layer's attention is a map over the grid.
        example: the smallest of these, run for real; ``layers`` of it have maps, ``windowed`` of them within windows.
        grids: of the layers' maps, at the model's own image size, and the prefix tokens in front.
        difference: of the logits from the bare model's, relative to the largest (at least 1).
        placed: changed cells found at their token, of those tried over up to three layers.
        without: names whose attention is no such map, or that have none.
    """

    family: str
    names: int
    with_maps: int
    example: str = ""
    layers: int = 0
    windowed: int = 0
    grids: str = ""
    difference: str = ""
    placed: str = ""
    without: str = ""


def count_layers(name: str) -> tuple[int, int]:
    """Layers with a map, and parameters, without memory for weights (for real where that fails)."""
    for device in ("meta", "cpu"):
        try:
            with torch.device(device):
                model = timm.create_model(name).eval()
                size = sum(parameter.numel() for parameter in model.parameters())
                return len(vitlet.TimmBackbone(model).shapes(Needs(attention="all")).attention), size
        except vitlet.VitletError as problem:
            if problem.__cause__ is None:  # refused: no maps, no classifier, no intermediate grids
                return 0, size
        except Exception as problem:
            print(name, device, type(problem).__name__, str(problem)[:80])
    return 0, 0


def change(first: AttentionMap, second: AttentionMap) -> Tensor:
    """How much each token's row and column changed: ``(G, N)``."""
    difference = (second.patches.double().clamp(min=1e-30).log() - first.patches.double().clamp(min=1e-30).log())[0]
    if first.visible is not None:
        difference = difference * first.visible[:, None]
    difference = difference - difference.median(-1, keepdim=True).values  # all of a row moves with its normaliser
    change = difference.abs()
    return change.sum((1, 2)) / change.shape[2] + change.sum((1, 3)) / change.shape[3]


def placed(backbone: vitlet.TimmBackbone, images: Tensor, index: int) -> tuple[int, int]:
    """Changed cells found at their token (or beside it), and cells tried."""
    needs = Needs(attention=(index,))
    height, width = images.shape[2:]
    before = backbone(View(images), needs).attention[index]
    rows, columns = before.shape.height, before.shape.width
    generator = torch.Generator().manual_seed(index)
    right = 0
    for _ in range(CELLS):
        row, column = (int(torch.randint(side, (), generator=generator)) for side in (rows, columns))
        top, left = row * height // rows, column * width // columns
        bottom, end = max(top + 1, (row + 1) * height // rows), max(left + 1, (column + 1) * width // columns)
        changed = images.clone()
        patch = changed[:, :, top:bottom, left:end]
        changed[:, :, top:bottom, left:end] = patch + 2 * torch.randn(patch.shape, generator=generator)
        after = backbone(View(changed), needs).attention[index]
        found = before.coords[0].flatten(0, 1)[change(before, after).argmax()]
        right += int((found - torch.tensor([row, column])).abs().max() <= 1)
    return right, CELLS


def check(name: str, parameters: int, family: Family) -> None:
    """Run one model for real, shortened to 3 blocks if it is large, and note what was found."""
    torch.manual_seed(0)
    model: Any = timm.create_model(name, **({"depth": 3} if parameters > LARGE else {})).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so that no head or branch stays at 0
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
        backbone = vitlet.TimmBackbone(model)
        images = torch.randn(1, backbone.in_chans, *backbone.img_size)
        expected = model(images)
        shapes = backbone.shapes(Needs(attention="all")).attention
        logits = backbone(View(images), Needs(attention="all")).logits
        assert logits is not None
        family.difference = f"{(logits - expected).abs().max() / expected.abs().max().clamp(min=1):.1e}"
        tries = [placed(backbone, images, index) for index in sorted({0, len(shapes) // 2, len(shapes) - 1})]
    family.layers, family.windowed = len(shapes), sum(shape.windows > 1 for shape in shapes)
    grids = dict.fromkeys(f"{shape.height}x{shape.width}+{shape.prefix}" for shape in shapes)
    family.grids = " ".join(grids)
    family.placed = f"{sum(right for right, _ in tries)}/{sum(total for _, total in tries)}"


def main() -> None:
    """Survey all names, then run one of each family."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # timm's, about its own models
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for name in timm.list_models():
        module = str(model_entrypoint(name).__module__).rpartition(".")[2]
        found.setdefault(module, {})[name] = count_layers(name)
    with RESULTS.open("w", newline="") as file:
        file.write(header("python benchmarks/attention_models.py") + "\n")
        writer = csv.DictWriter(file, [field.name for field in fields(Family)], lineterminator="\n")
        writer.writeheader()
        for module, names in sorted(found.items()):
            having = {name: size for name, (layers, size) in names.items() if layers}
            if not having:
                continue
            family = Family(module, len(names), len(having), min(having, key=lambda name: having[name]))
            family.without = " ".join(sorted(set(names) - set(having)))
            check(family.example, having[family.example], family)
            writer.writerow(asdict(family))
            file.flush()
            print(family, flush=True)


if __name__ == "__main__":
    main()
