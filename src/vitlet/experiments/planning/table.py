"""A plan as a person reads it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from vitlet.experiments.planning.plan import GIB, Plan

NAMES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "average": "moving average",
    "activations": "activations kept for the backward pass",
    "temporary": "more for a moment, or less: not all is there at once",
    "reserved": "driver and gaps",
}


def print_plan(plan: Plan) -> None:
    """Two tables, the verdict, and what it all rests on."""
    console = Console()
    console.print(f"predicted, not measured: {plan.run}", highlight=False, markup=False, soft_wrap=True)
    memory = _table("memory of one device", "GiB")
    for name, words in NAMES.items():
        size = getattr(plan.memory, name)
        if size:
            memory.add_row(words, f"{size / GIB:.3f}")
    memory.add_row("all", f"{plan.memory.total / GIB:.3f}")
    console.print(memory)
    console.print(_times(plan))
    verdict = f"fits: {plan.memory.total / GIB:.2f} of {plan.available / GIB:.1f} GiB"
    for line in (verdict if plan.fits else f"does not fit: {plan.advice}", *plan.notes):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _times(plan: Plan) -> Table:
    table = _table("run", f"{plan.devices} x {plan.device}")
    table.add_row("parameters", f"{plan.parameters / 1e6:.2f} M")
    table.add_row("GFLOP of an image, forward and backward", f"{plan.gflops:.2f}")
    table.add_row("images on a device at a time", str(plan.images))
    table.add_row("step", seconds(plan.step_seconds))
    if plan.link_seconds:
        table.add_row("of it exchanging gradients", seconds(plan.link_seconds))
    table.add_row("images per second", f"{plan.images_per_second:,.1f}")
    table.add_row("steps", f"{plan.steps:,}")
    table.add_row("hours, with validation", f"{plan.hours:,.2f}")
    if plan.cost is not None:
        table.add_row("cost", f"{plan.cost:,.2f}")
    return table


def seconds(value: float) -> str:
    """In a unit that suits."""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def _table(first: str, second: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first)
    table.add_column(second, justify="right")
    return table
