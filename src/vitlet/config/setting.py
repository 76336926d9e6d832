"""Settings: dataclass fields with a help text, a flag, a group and a range of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, get_type_hints

from vitlet.errors import VitletError
from vitlet.values import coerce


class Range(NamedTuple):
    """The valid numbers of a setting, as text and as a test, which must be false for nan."""

    words: str
    holds: Callable[[float], bool]


COUNT = Range("at least 1", lambda value: value >= 1)
NONNEGATIVE = Range("at least 0", lambda value: value >= 0)
POSITIVE = Range("greater than 0", lambda value: value > 0)
SHARE = Range("between 0 and 1", lambda value: 0 <= value <= 1)
POSITIVE_SHARE = Range("greater than 0 and at most 1", lambda value: 0 < value <= 1)


class Group(NamedTuple):
    """A heading in ``--help``; called, it makes a setting under it.

    Attributes:
        title: the heading.
        free: whether a resumed run may change these settings, because they do not affect the weights.
    """

    title: str
    free: bool = False

    def __call__(
        self, default: Any, help_text: str, needs: Range | None = None, *, flag: str | None = None, free: bool = False
    ) -> Any:
        """A field of a `Settings` record; ``flag`` is a short flag such as ``-b``."""
        about = {"group": self, "help": help_text, "needs": needs, "flag": flag, "free": free or self.free}
        if isinstance(default, dict):
            return field(default_factory=dict, metadata=about)
        return field(default=default, metadata=about)


DATA = Group("data")
MODEL = Group("model")
OPTIM = Group("optimisation")
AUG = Group("augmentation")
TASK = Group("tasks")
HARDWARE = Group("hardware")
CHECKPOINTS = Group("checkpoints and logging", free=True)
RUN = Group("run", free=True)  # folder, processes, resuming; not written into config.yaml


@dataclass(frozen=True)
class Settings:
    """Base class of frozen records whose fields are settings; subclasses add fields and checks."""

    ORDER: ClassVar[str] = ""
    """Names that come first in `settings`; the others follow in order of declaration."""

    def __post_init__(self) -> None:
        for item in self.settings():
            needs, value = item.metadata["needs"], getattr(self, item.name)
            if needs is not None and value is not None and not needs.holds(value):
                raise VitletError(f"{item.name} must be {needs.words}, got {value:g}.")

    @classmethod
    def settings(cls) -> list[Field[Any]]:
        """The fields that are flags and YAML keys."""
        order, found = cls.ORDER.split(), [item for item in fields(cls) if "help" in item.metadata]
        return sorted(found, key=lambda item: order.index(item.name) if item.name in order else len(order))

    @classmethod
    def redefault(cls, name: str, default: Any) -> Any:
        """The setting ``name`` with another default, for use in a subclass."""
        (about,) = (item.metadata for item in fields(cls) if item.name == name)
        return field(default=default, metadata=about)

    @classmethod
    def coerced(cls, values: Mapping[str, Any], source: str) -> dict[str, Any]:
        """Values converted to the types of the settings, from flags or from a YAML file."""
        hints = get_type_hints(cls)
        return {key: coerce(value, hints[key], f"{source}: {key}") for key, value in values.items()}
