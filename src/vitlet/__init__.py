"""vitlet trains vision transformers well on small datasets.

Names are imported when first used: ``import vitlet`` alone costs nothing. Once timm is imported too it finds the
networks of `vitlet.models`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitlet.moved import keep_old_paths
from vitlet.registration import register_networks

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vitlet import functional as functional
    from vitlet import testing as testing
    from vitlet.backbones import LayerBackbone as LayerBackbone
    from vitlet.backbones import TimmBackbone as TimmBackbone
    from vitlet.config import RunConfig as RunConfig
    from vitlet.errors import VitletError as VitletError
    from vitlet.objective import Objective as Objective
    from vitlet.objective import Outcome as Outcome
    from vitlet.objective import Term as Term
    from vitlet.objective.attached import Attached as Attached
    from vitlet.objective.attached import attach as attach
    from vitlet.objective.schedules import Ramp as Ramp
    from vitlet.objective.timm_task import TimmTrainingTask as TimmTrainingTask
    from vitlet.tasks.angle import Angle as Angle
    from vitlet.tasks.attention_distance import AttentionDistance as AttentionDistance
    from vitlet.tasks.attention_similarity import AttentionSimilarity as AttentionSimilarity
    from vitlet.tasks.distance import Distance as Distance
    from vitlet.tasks.drloc import DRLoc as DRLoc
    from vitlet.tasks.jigsaw import Jigsaw as Jigsaw
    from vitlet.tasks.position import Position as Position
    from vitlet.tasks.rotation import Rotation as Rotation
    from vitlet.tasks.sprel import SpatialRelations as SpatialRelations
    from vitlet.tokens.patch_augment import PatchAugment as PatchAugment
    from vitlet.tokens.patch_views import MegaPatches as MegaPatches
    from vitlet.tokens.patch_views import ShuffledPatches as ShuffledPatches
    from vitlet.tokens.rotated import Rotated as Rotated
    from vitlet.tokens.views import Chain as Chain
    from vitlet.training.loop import train as train

_HOME = {
    "Angle": "vitlet.tasks.angle",
    "Attached": "vitlet.objective.attached",
    "AttentionDistance": "vitlet.tasks.attention_distance",
    "AttentionSimilarity": "vitlet.tasks.attention_similarity",
    "Chain": "vitlet.tokens.views",
    "DRLoc": "vitlet.tasks.drloc",
    "Distance": "vitlet.tasks.distance",
    "Jigsaw": "vitlet.tasks.jigsaw",
    "LayerBackbone": "vitlet.backbones",
    "MegaPatches": "vitlet.tokens.patch_views",
    "Objective": "vitlet.objective",
    "Outcome": "vitlet.objective",
    "PatchAugment": "vitlet.tokens.patch_augment",
    "Position": "vitlet.tasks.position",
    "Ramp": "vitlet.objective.schedules",
    "Rotated": "vitlet.tokens.rotated",
    "Rotation": "vitlet.tasks.rotation",
    "RunConfig": "vitlet.config",
    "ShuffledPatches": "vitlet.tokens.patch_views",
    "SpatialRelations": "vitlet.tasks.sprel",
    "Term": "vitlet.objective",
    "TimmBackbone": "vitlet.backbones",
    "TimmTrainingTask": "vitlet.objective.timm_task",
    "VitletError": "vitlet.errors",
    "attach": "vitlet.objective.attached",
    "train": "vitlet.training.loop",
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
keep_old_paths()
