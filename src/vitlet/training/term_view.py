"""The view of a run's term, from its settings and the network's grid."""

from __future__ import annotations

from vitlet.backbones import Backbone
from vitlet.config import TaskConfig
from vitlet.errors import VitletError
from vitlet.models.factory import data_statistics
from vitlet.tasks.task import Task
from vitlet.tokens.patch_augment import PatchAugment
from vitlet.tokens.patch_views import MegaPatches, ShuffledPatches
from vitlet.tokens.rotated import Rotated
from vitlet.tokens.views import Chain, PlainView, ViewMaker


def make_view(chosen: TaskConfig, task: Task, backbone: Backbone) -> ViewMaker:
    """What a term looks at, by default what its task suggests; patches are as large as the network's last tokens."""
    makers: list[ViewMaker] = []
    if chosen.view == "rotate":
        makers.append(Rotated())
    elif chosen.view is None and task.suggested_view != PlainView():
        makers.append(task.suggested_view)
    if chosen.view not in ("shuffle", "mega") and not chosen.patch_augment:
        return makers[0] if makers else PlainView()
    patch = _patch(backbone)
    if chosen.view == "shuffle":
        makers.append(ShuffledPatches(patch))
    elif chosen.view == "mega":
        makers.append(MegaPatches(patch, chosen.mega_side, chosen.mega_coords))
    if chosen.patch_augment:
        mean, std = data_statistics(backbone.model, backbone.in_chans)
        makers.append(PatchAugment(patch, tuple(mean), tuple(std)))
    return makers[0] if len(makers) == 1 else Chain(tuple(makers))


def _patch(backbone: Backbone) -> int:
    """Pixels along a token of the last grid."""
    height, width = backbone.img_size
    grid = backbone.shapes().last
    patch = height // grid.height
    if (grid.height * patch, grid.width * patch) != (height, width):
        raise VitletError(
            f"{backbone.describe()} has {grid.height}x{grid.width} tokens on images of {height}x{width} pixels, which"
            " are no whole square patches: they cannot be shuffled, joined or augmented one by one."
            " Use another image size, or view 'plain' without patch_augment."
        )
    return patch
