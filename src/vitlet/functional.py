"""Losses of the tasks as pure functions of tensors and coordinates.

A task is a target that comes from where tokens are, and a loss between that and what a head says. Both are functions
here: those that the modules of the built-in tasks name in ``__all__``. Heads are in `vitlet.tasks.heads`, or yours.
Nothing in this module imports timm or torchvision.

Letters: B images, N tokens, M sampled pairs, H and W rows and columns of the grid, N = H*W, h attention heads.
Coordinates ``(B, N, 2)``, or ``(1, N, 2)`` where every image has the same grid, are rows and columns in cells.
"""

# ruff: noqa: F403
from __future__ import annotations

from importlib import import_module
from inspect import isfunction
from typing import TYPE_CHECKING, Any

from vitlet.tasks.registry import PUBLIC_TASKS
from vitlet.tokens.geometry import grid_coords as grid_coords
from vitlet.tokens.geometry import pair_offsets as pair_offsets
from vitlet.tokens.geometry import sample_pairs as sample_pairs

if TYPE_CHECKING:  # the types of those there are; of others editors know the name alone
    from vitlet.tasks.angle import *
    from vitlet.tasks.attention_distance import *
    from vitlet.tasks.attention_similarity import *
    from vitlet.tasks.distance import *
    from vitlet.tasks.drloc import *
    from vitlet.tasks.guidance import *
    from vitlet.tasks.jigsaw import *
    from vitlet.tasks.position import *
    from vitlet.tasks.reconstruction import *
    from vitlet.tasks.rotation import *
    from vitlet.tasks.sprel import *

    def __getattr__(name: str) -> Any: ...


_FUNCTIONS = {function.__name__: function for function in (grid_coords, pair_offsets, sample_pairs)}
for _module in map(import_module, PUBLIC_TASKS.values()):
    _public = [getattr(_module, name) for name in getattr(_module, "__all__", ())]
    _FUNCTIONS |= {value.__name__: value for value in _public if isfunction(value)}
globals().update(_FUNCTIONS)

__all__ = sorted(_FUNCTIONS)
