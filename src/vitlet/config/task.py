"""A task of a run: its weight, its options, and what every task can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_type_hints

from vitlet.errors import VitletError, nearest
from vitlet.tasks.declared import Option, declared_options
from vitlet.values import coerce, shown


def _term(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class TaskConfig:
    """A task of a run: its weight and schedule, the view it looks at, and the task's own options."""

    weight: float
    schedule: Literal["constant", "ramp"] | None = _term(
        None, "of the weight; ramp: up from 0, then down to 0 (default: by preset)"
    )
    warmup_epochs: float | None = _term(
        None, "of a ramp: epochs until the full weight (default: 20, at most a fifth of the run)"
    )
    view: Literal["plain", "shuffle", "mega", "rotate"] | None = _term(
        None, "what the task looks at; shuffle: patches moved; mega: joined; rotate: quarter turns (default: by task)"
    )
    patch_augment: bool = _term(False, "crop, jitter and grey every patch by itself")
    mega_side: int = _term(5, "of view mega: joined patches along a side")
    mega_coords: Literal["index", "image"] = _term(
        "index", "of view mega: places by index, or by the centre in the original image"
    )
    options: Mapping[str, Any] = field(default_factory=dict)

    def check(self, name: str) -> None:
        """Refuse settings of the task of this name that its types allow."""
        if not 0 <= self.weight < float("inf"):
            raise VitletError(f"the weight of task {name!r} is {self.weight:g}; it needs to be 0 or more.")
        of_mega = [key for key in ("mega_side", "mega_coords") if getattr(self, key) != TERM_OPTIONS[key].default]
        if of_mega and self.view != "mega":
            raise VitletError(f"{name}.{of_mega[0]} is given, but its view is not mega. Add --{name}.view mega.")

    def chosen(self) -> dict[str, Any]:
        """The options that are not as usual, under the keys of a YAML file."""
        term = {key: getattr(self, key) for key in TERM_OPTIONS}
        return {key: value for key, value in term.items() if value != TERM_OPTIONS[key].default} | dict(self.options)

    @staticmethod
    def from_values(name: str, weight: Any, chosen: Any, source: str) -> TaskConfig:
        """Checked options from plain values; unknown keys are refused with the nearest known one."""
        chosen = {} if chosen is None else chosen
        if not isinstance(chosen, Mapping):
            raise VitletError(f"{source}: {name!r} needs to map its options to values, found {shown(chosen)}.")
        known = declared_options(name) | TERM_OPTIONS
        values = {}
        for key, value in chosen.items():
            if key not in known:
                hint = nearest(str(key), [*TERM_OPTIONS, *known])
                raise VitletError(f"{source}: task {name!r} has no option {str(key)!r}.{hint}")
            values[key] = coerce(value, known[key].hint, f"{source}: {name}.{key}")
        term = {key: values.pop(key) for key in TERM_OPTIONS if key in values}
        return TaskConfig(weight=coerce(weight, float, f"{source}: task {name}"), options=values, **term)


TERM_OPTIONS = {
    item.name: Option(get_type_hints(TaskConfig)[item.name], item.default, item.metadata["help"])
    for item in fields(TaskConfig)
    if item.metadata
}
"""What every task can be told besides its own options."""
