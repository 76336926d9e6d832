"""Grids of every block, or of every stage after merging, where ``forward_intermediates`` shows plain stages.

Blocks and merging layers are known by the names that timm gives them: ``layers.1.blocks.0``, ``stages.1.downsample``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from vitlet.backbones.find_grid import first_tensor
from vitlet.errors import VitletError
from vitlet.tokens.features import GridLevels

NAMES: dict[str, re.Pattern[str]] = {
    "blocks": re.compile(r"(?:layers|stages)\.(\d+)\.blocks\.\d+"),
    "merged": re.compile(r"(?:layers|stages)\.([1-9]\d*)\.downsample"),
}
"""Layers whose outputs are read, by level; the number is that of the stage."""


def as_grid(output: Any, like: Tensor) -> Tensor | None:
    """An output read as a map of the size of ``like`` ``(B, C, H, W)``, prefix tokens stripped; None if it is none."""
    batch, _, height, width = like.shape
    if isinstance(output, Tensor):
        if output.ndim == 3 and output.shape[1] >= height * width:
            patches = output[:, output.shape[1] - height * width :]
            return patches.transpose(1, 2).reshape(batch, -1, height, width)
        if output.ndim == 4 and output.shape[2:] == (height, width):
            return output
        if output.ndim == 4 and output.shape[1:3] == (height, width):
            return output.permute(0, 3, 1, 2)
    return None


@contextmanager
def heard(model: nn.Module, levels: GridLevels) -> Iterator[list[tuple[int, Any]]]:
    """Collects the outputs of the layers that a level is made of, each with the number of its stage."""
    found: list[tuple[int, Any]] = []
    handles = []
    for name, module in model.named_modules() if levels in NAMES else ():
        match = NAMES[levels].fullmatch(name)
        if match is not None and not isinstance(module, nn.Identity):

            def keep(module: nn.Module, inputs: Any, output: Any, stage: int = int(match[1])) -> None:
                found.append((stage, first_tensor(output)))

            handles.append(module.register_forward_hook(keep))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def level_maps(
    model: nn.Module, levels: GridLevels, outputs: Sequence[tuple[int, Any]], shown: list[Tensor]
) -> list[Tensor]:
    """The maps ``(B, C, H, W)`` of a level, of what was heard and of what ``forward_intermediates`` showed."""
    maps = [as_grid(output, shown[stage]) if stage < len(shown) else None for stage, output in outputs]
    read = [one for one in maps if one is not None]
    if levels == "merged":  # a stage begins with the merging of the one before; the last stage has none after it
        return [*read, shown[-1]] if len(read) == len(shown) - 1 else shown
    if levels == "shown" or len(getattr(model, "blocks", ())) == len(shown):
        return shown
    if not read or len(read) < len(maps):
        raise VitletError(
            f"{type(model).__name__} shows {len(shown)} stages, and no blocks whose outputs could be read as their"
            " grids. Use levels 'stages'."
        )
    return read
