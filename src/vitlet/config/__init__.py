"""Everything that defines a run, as one frozen record composed of groups of settings.

The same keys are flags (``--batch-size``), YAML keys (``batch_size``) and fields here. This package does not import
torch: a mistyped key must be answered at once.
"""

from vitlet.config.augmentation import PRESET
from vitlet.config.base import BaseConfig
from vitlet.config.run import RunConfig
from vitlet.config.task import TERM_OPTIONS, TaskConfig

__all__ = ["PRESET", "TERM_OPTIONS", "BaseConfig", "RunConfig", "TaskConfig"]
