"""vitlet: train image classifiers well on small datasets.

Names are imported when first used, so ``import vitlet`` is fast. Once timm is imported, it knows the models of
`vitlet.models`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitlet.moved import keep_old_paths
from vitlet.registration import register_networks
from vitlet.tasks.registry import PUBLIC_TASKS, typed_imports

__version__ = "0.2.0"

if TYPE_CHECKING:  # the public names; at run time they are read from here, and imported when first used
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
    from vitlet.tasks import *  # noqa: F403  # every built-in task
    from vitlet.tokens.masked import Masked as Masked
    from vitlet.tokens.patch_augment import PatchAugment as PatchAugment
    from vitlet.tokens.patch_views import MegaPatches as MegaPatches
    from vitlet.tokens.patch_views import ShuffledPatches as ShuffledPatches
    from vitlet.tokens.rotated import Rotated as Rotated
    from vitlet.tokens.views import Chain as Chain
    from vitlet.training.loop import train as train

_HOME = typed_imports(__file__) | PUBLIC_TASKS

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from vitlet.errors import nearest

        raise AttributeError(f"module 'vitlet' has no attribute {name!r}.{nearest(name, _HOME, 1)}")
    home = _HOME[name]
    return import_module(f"vitlet.{name}") if home == "vitlet" else getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__


register_networks()
keep_old_paths()
