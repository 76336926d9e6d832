"""What is asked of a plan beyond the settings of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vitlet.errors import VitletError


def _wish(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class PlanRequest:
    """How many devices, how fast, at what price."""

    images: int | None = _wish(None, "number of training images, in place of DATA")
    devices: int = _wish(1, "number of devices that share a step")
    price: float | None = _wish(None, "of one device for an hour, in any currency")
    efficiency: float | None = _wish(None, "share of a named device's peak that products achieve (default: 0.5)")
    tflops: float | None = _wish(None, "of your own device: trillions of operations a second at the run's precision")
    bandwidth: float | None = _wish(None, "of your own device's memory, GB/s")
    memory: float | None = _wish(None, "of your own device, or to leave it less: GiB")
    link: float | None = _wish(None, "GB/s that one device sends to the others (default: the device's)")

    def __post_init__(self) -> None:
        for name, least in (("images", 1), ("devices", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise VitletError(f"{name} is {value}; it needs to be {least} or more.")
        for name in ("efficiency", "tflops", "bandwidth", "memory", "link"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise VitletError(f"{name} is {value:g}; it needs to be above 0.")
        if self.price is not None and not 0 <= self.price < float("inf"):
            raise VitletError(f"price is {self.price:g}; it needs to be 0 or more.")
        if self.efficiency is not None and self.efficiency > 1:
            raise VitletError(f"efficiency is {self.efficiency:g}; it needs to be between 0 and 1.")
        if (self.tflops is None) != (self.bandwidth is None):
            raise VitletError("a device of your own needs both --tflops and --bandwidth; found one of them.")
        if self.tflops is not None and self.memory is None:
            raise VitletError("a device of your own needs --memory, in GiB, beside --tflops and --bandwidth.")

    def share(self, batch_size: int, parts: int) -> int:
        """Images that one device looks at at a time, if it takes its share of the batch in ``parts``."""
        pieces = self.devices * parts
        if batch_size % pieces:
            split = f"{self.devices} devices" + (f" x {parts} parts" if parts > 1 else "")
            fitting = max(pieces, round(batch_size / pieces) * pieces)
            raise VitletError(
                f"a batch of {batch_size} images does not divide by {split}; batch_size is all images of one step."
                f" Use -b {fitting}."
            )
        return batch_size // pieces
