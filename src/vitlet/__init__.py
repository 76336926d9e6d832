"""vitlet trains vision transformers well on small datasets.

Names are imported when first used: ``import vitlet`` alone costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from vitlet.backbone import LayerBackbone as LayerBackbone
    from vitlet.backbone import TimmBackbone as TimmBackbone
    from vitlet.config import RunConfig as RunConfig
    from vitlet.engine import train as train
    from vitlet.errors import VitletError as VitletError
    from vitlet.objective import Objective as Objective
    from vitlet.objective import Outcome as Outcome
    from vitlet.objective import Term as Term
    from vitlet.rotated import Rotated as Rotated
    from vitlet.schedules import Ramp as Ramp
    from vitlet.tasks.attention_distance import AttentionDistance as AttentionDistance
    from vitlet.tasks.attention_similarity import AttentionSimilarity as AttentionSimilarity
    from vitlet.tasks.drloc import DRLoc as DRLoc
    from vitlet.tasks.rotation import Rotation as Rotation
    from vitlet.timm_task import TimmTrainingTask as TimmTrainingTask

_HOME = {
    "AttentionDistance": "vitlet.tasks.attention_distance",
    "AttentionSimilarity": "vitlet.tasks.attention_similarity",
    "DRLoc": "vitlet.tasks.drloc",
    "LayerBackbone": "vitlet.backbone",
    "Objective": "vitlet.objective",
    "Outcome": "vitlet.objective",
    "Ramp": "vitlet.schedules",
    "Rotated": "vitlet.rotated",
    "Rotation": "vitlet.tasks.rotation",
    "RunConfig": "vitlet.config",
    "Term": "vitlet.objective",
    "TimmBackbone": "vitlet.backbone",
    "TimmTrainingTask": "vitlet.timm_task",
    "VitletError": "vitlet.errors",
    "train": "vitlet.engine",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'vitlet' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
