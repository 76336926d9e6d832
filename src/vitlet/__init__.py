"""vitlet trains vision transformers well on small datasets.

Names are imported when first used: ``import vitlet`` alone costs nothing. Once timm is imported too it finds the
networks of `vitlet.models`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitlet.registration import register_networks

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vitlet import functional as functional
    from vitlet import testing as testing
    from vitlet.attached import Attached as Attached
    from vitlet.attached import attach as attach
    from vitlet.backbone import LayerBackbone as LayerBackbone
    from vitlet.backbone import TimmBackbone as TimmBackbone
    from vitlet.config import RunConfig as RunConfig
    from vitlet.engine import train as train
    from vitlet.errors import VitletError as VitletError
    from vitlet.objective import Objective as Objective
    from vitlet.objective import Outcome as Outcome
    from vitlet.objective import Term as Term
    from vitlet.patch_augment import PatchAugment as PatchAugment
    from vitlet.rotated import Rotated as Rotated
    from vitlet.schedules import Ramp as Ramp
    from vitlet.tasks.angle import Angle as Angle
    from vitlet.tasks.attention_distance import AttentionDistance as AttentionDistance
    from vitlet.tasks.attention_similarity import AttentionSimilarity as AttentionSimilarity
    from vitlet.tasks.distance import Distance as Distance
    from vitlet.tasks.drloc import DRLoc as DRLoc
    from vitlet.tasks.jigsaw import Jigsaw as Jigsaw
    from vitlet.tasks.position import Position as Position
    from vitlet.tasks.rotation import Rotation as Rotation
    from vitlet.tasks.sprel import SpatialRelations as SpatialRelations
    from vitlet.timm_task import TimmTrainingTask as TimmTrainingTask
    from vitlet.view_kinds import MegaPatches as MegaPatches
    from vitlet.view_kinds import ShuffledPatches as ShuffledPatches
    from vitlet.views import Chain as Chain

_HOME = {
    "Angle": "vitlet.tasks.angle",
    "Attached": "vitlet.attached",
    "AttentionDistance": "vitlet.tasks.attention_distance",
    "AttentionSimilarity": "vitlet.tasks.attention_similarity",
    "Chain": "vitlet.views",
    "DRLoc": "vitlet.tasks.drloc",
    "Distance": "vitlet.tasks.distance",
    "Jigsaw": "vitlet.tasks.jigsaw",
    "LayerBackbone": "vitlet.backbone",
    "MegaPatches": "vitlet.view_kinds",
    "Objective": "vitlet.objective",
    "Outcome": "vitlet.objective",
    "PatchAugment": "vitlet.patch_augment",
    "Position": "vitlet.tasks.position",
    "Ramp": "vitlet.schedules",
    "Rotated": "vitlet.rotated",
    "Rotation": "vitlet.tasks.rotation",
    "RunConfig": "vitlet.config",
    "ShuffledPatches": "vitlet.view_kinds",
    "SpatialRelations": "vitlet.tasks.sprel",
    "Term": "vitlet.objective",
    "TimmBackbone": "vitlet.backbone",
    "TimmTrainingTask": "vitlet.timm_task",
    "VitletError": "vitlet.errors",
    "attach": "vitlet.attached",
    "train": "vitlet.engine",
}

_MODULES = ("functional", "testing")

__all__ = ["__version__", *sorted((*_HOME, *_MODULES))]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"vitlet.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'vitlet' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__


register_networks()
