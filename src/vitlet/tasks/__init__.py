"""The tasks by name; importing this module imports none of them (the command line must stay quick).

A built-in task is one line below, which type checkers and editors read as an import and `vitlet.tasks.registry` as
text. Its name on the command line is that of its file, with hyphens.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitlet.tasks.registry import PUBLIC_TASKS
from vitlet.tasks.registry import TASKS as TASKS

if TYPE_CHECKING:
    # isort: off
    from vitlet.tasks.drloc import DRLoc as DRLoc
    from vitlet.tasks.sprel import SpatialRelations as SpatialRelations
    from vitlet.tasks.distance import Distance as Distance
    from vitlet.tasks.angle import Angle as Angle
    from vitlet.tasks.position import Position as Position
    from vitlet.tasks.jigsaw import Jigsaw as Jigsaw
    from vitlet.tasks.attention_distance import AttentionDistance as AttentionDistance
    from vitlet.tasks.attention_similarity import AttentionSimilarity as AttentionSimilarity
    from vitlet.tasks.rotation import Rotation as Rotation
    from vitlet.tasks.guidance import Guidance as Guidance
    from vitlet.tasks.reconstruction import Reconstruction as Reconstruction
    # isort: on


def __getattr__(name: str) -> Any:
    if name not in PUBLIC_TASKS:
        raise AttributeError(f"module 'vitlet.tasks' has no attribute {name!r}")
    return getattr(import_module(PUBLIC_TASKS[name]), name)
