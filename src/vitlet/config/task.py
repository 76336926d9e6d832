"""Settings of a task in a run: weight, schedule, view, and the task's own options."""

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
    """Weight, weight schedule, view and options of a task in a run."""

    weight: float
    schedule: Literal["constant", "ramp"] | None = _term(
        None, "schedule of the weight; ramp: from 0 up, then down to 0 (default: by preset)"
    )
    warmup_epochs: float | None = _term(
        None, "epochs until a ramp reaches the full weight (default: 20, at most a fifth of the run)"
    )
    view: Literal["plain", "shuffle", "mega", "rotate"] | None = _term(
        None,
        "images that the task sees; shuffle: permuted patches; mega: merged patches; rotate: by multiples of 90 degrees"
        " (default: by task)",
    )
    patch_augment: bool = _term(False, "augment every patch independently: crop, colour jitter, grey")
    mega_side: int = _term(5, "merged patches per side, for view mega")
    mega_coords: Literal["index", "image"] = _term(
        "index", "token coordinates for view mega: index in the new grid, or centre in the original image"
    )
    options: Mapping[str, Any] = field(default_factory=dict)

    def check(self, name: str) -> None:
        """Check the values of the task ``name`` beyond their types."""
        if not 0 <= self.weight < float("inf"):
            raise VitletError(f"the weight of task {name!r} must be at least 0, got {self.weight:g}.")
        of_mega = [key for key in ("mega_side", "mega_coords") if getattr(self, key) != TERM_OPTIONS[key].default]
        if of_mega and self.view != "mega":
            raise VitletError(f"{name}.{of_mega[0]} requires view mega. Add --{name}.view mega.")

    def chosen(self) -> dict[str, Any]:
        """The options that differ from their defaults, under the keys of a YAML file."""
        term = {key: getattr(self, key) for key in TERM_OPTIONS}
        return {key: value for key, value in term.items() if value != TERM_OPTIONS[key].default} | dict(self.options)

    @staticmethod
    def from_values(name: str, weight: Any, chosen: Any, source: str) -> TaskConfig:
        """Checked options from plain values; unknown keys are refused with the nearest known one."""
        chosen = {} if chosen is None else chosen
        if not isinstance(chosen, Mapping):
            raise VitletError(f"{source}: {name!r} must map options to values, got {shown(chosen)}.")
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
"""Options that every task has besides its own."""
