"""What a setting is: a field with its help, its flags, its group and its range."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, get_type_hints

from vitlet.errors import VitletError
from vitlet.values import coerce


class Range(NamedTuple):
    """The numbers that a setting may be, in words and as a test, which nan must not pass."""

    words: str
    holds: Callable[[float], bool]


COUNT = Range("1 or more", lambda value: value >= 1)
NONNEGATIVE = Range("0 or more", lambda value: value >= 0)
POSITIVE = Range("more than 0", lambda value: value > 0)
SHARE = Range("between 0 and 1", lambda value: 0 <= value <= 1)
POSITIVE_SHARE = Range("more than 0 and at most 1", lambda value: 0 < value <= 1)


class Group(NamedTuple):
    """A heading in ``--help``; called, it makes a setting under it.

    Attributes:
        title: the heading.
        free: whether a continued run may change these settings, for they have no say in the weights.
    """

    title: str
    free: bool = False

    def __call__(
        self, default: Any, help_text: str, needs: Range | None = None, *, flag: str | None = None, free: bool = False
    ) -> Any:
        """A field of a `Settings` record; ``flag`` is a short one beside that of its name."""
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
RUN = Group("run", free=True)  # where it lies and how it is started; not written into its file


@dataclass(frozen=True)
class Settings:
    """A frozen record whose fields are settings. A group of them derives from this, and adds its checks to mine."""

    ORDER: ClassVar[str] = ""
    """Names that come first in `settings`, in this order; the others follow as they are declared."""

    def __post_init__(self) -> None:
        for item in self.settings():
            needs, value = item.metadata["needs"], getattr(self, item.name)
            if needs is not None and value is not None and not needs.holds(value):
                raise VitletError(f"{item.name} is {value:g}; it needs to be {needs.words}.")

    @classmethod
    def settings(cls) -> list[Field[Any]]:
        """The fields that are flags and keys."""
        order, found = cls.ORDER.split(), [item for item in fields(cls) if "help" in item.metadata]
        return sorted(found, key=lambda item: order.index(item.name) if item.name in order else len(order))

    @classmethod
    def redefault(cls, name: str, default: Any) -> Any:
        """The setting of that name with another default, for a class that derives from this one."""
        (about,) = (item.metadata for item in fields(cls) if item.name == name)
        return field(default=default, metadata=about)

    @classmethod
    def coerced(cls, values: Mapping[str, Any], source: str) -> dict[str, Any]:
        """Settings as the types that are wanted, from the texts of flags or the values of a YAML file."""
        hints = get_type_hints(cls)
        return {key: coerce(value, hints[key], f"{source}: {key}") for key, value in values.items()}
