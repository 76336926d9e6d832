"""Plan as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from vitlet.experiments.planning.plan import GIB, Plan

MEMORY_NAMES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "average": "moving average",
    "activations": "activations saved for the backward pass",
    "temporary": "more for a moment, or less: not all is there at once",
    "reserved": "driver and gaps",
}


def print_plan(plan: Plan, chosen: Sequence[str] = ()) -> None:
    """Print the choice, the tables of memory and time, the verdict and the assumptions."""
    console = Console()
    for line in chosen:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"predicted, not measured: {plan.run}", highlight=False, markup=False, soft_wrap=True)
    sizes = {words: getattr(plan.memory, name) for name, words in MEMORY_NAMES.items()} | {"all": plan.memory.total}
    memory = {words: f"{size / GIB:.3f}" for words, size in sizes.items() if size}
    console.print(_table("memory of one device", "GiB", memory))
    console.print(_times(plan))
    verdict = f"fits: {plan.memory.total / GIB:.2f} of {plan.available / GIB:.1f} GiB"
    for line in (verdict if plan.fits else f"does not fit: {plan.advice}", *plan.notes):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _times(plan: Plan) -> Table:
    rows = {
        "parameters": f"{plan.parameters / 1e6:.2f} M",
        "GFLOP of an image, forward and backward": f"{plan.gflops:.2f}",
        "images on a device at a time": str(plan.images),
        "step": seconds(plan.step_seconds),
        "of it exchanging gradients": seconds(plan.link_seconds) if plan.link_seconds else None,
        "images per second": f"{plan.images_per_second:,.1f}",
        "steps": f"{plan.steps:,}",
        "hours, with validation": f"{plan.hours:,.2f}",
        "cost": None if plan.cost is None else f"{plan.cost:,.2f}",
    }
    return _table("run", f"{plan.devices} x {plan.device}", rows)


def seconds(value: float) -> str:
    """Duration in a readable unit."""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def _table(first: str, second: str, rows: Mapping[str, str | None]) -> Table:
    """Two columns; rows without a value are left out."""
    table = Table(first, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(second, justify="right")
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, value)
    return table
