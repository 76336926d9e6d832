"""The losses without any trainer: pure functions of tensors and coordinates, for a loop of your own.

A task is a target that comes from where tokens are, and a loss between that and what a head says. Both are functions
here; heads are in `vitlet.tasks.heads`, or yours. Nothing in this module imports timm or torchvision.

Letters: B images, N tokens, M sampled pairs, H and W rows and columns of the grid, N = H*W, h attention heads.
Coordinates ``(B, N, 2)``, or ``(1, N, 2)`` where every image has the same grid, are rows and columns in cells.
"""

from __future__ import annotations

from vitlet.tasks.angle import angle_loss, pair_angles
from vitlet.tasks.attention_distance import attention_distance_loss
from vitlet.tasks.attention_similarity import attention_similarity_loss, gram_matrices
from vitlet.tasks.distance import distance_loss, pair_distances
from vitlet.tasks.drloc import localization_ce, localization_l1, localization_reg
from vitlet.tasks.jigsaw import jigsaw_loss, places_in_order
from vitlet.tasks.position import cell_index, position_loss
from vitlet.tasks.rotation import quarter_turns, rotation_loss
from vitlet.tasks.sprel import relation_classes, relation_loss
from vitlet.tokens.geometry import grid_coords, pair_offsets, sample_pairs

__all__ = [
    "angle_loss",
    "attention_distance_loss",
    "attention_similarity_loss",
    "cell_index",
    "distance_loss",
    "gram_matrices",
    "grid_coords",
    "jigsaw_loss",
    "localization_ce",
    "localization_l1",
    "localization_reg",
    "pair_angles",
    "pair_distances",
    "pair_offsets",
    "places_in_order",
    "position_loss",
    "quarter_turns",
    "relation_classes",
    "relation_loss",
    "rotation_loss",
    "sample_pairs",
]
