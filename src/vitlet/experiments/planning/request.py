"""What is asked of a plan beyond the settings of the run."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from vitlet.config.setting import COUNT, POSITIVE_SHARE, Group, Range, Settings
from vitlet.errors import VitletError

PLAN = Group("plan")
FINITE = Range("above 0", lambda value: 0 < value < inf)


@dataclass(frozen=True)
class PlanRequest(Settings):
    """How many devices, how fast, at what price."""

    images: int | None = PLAN(None, "number of training images, in place of DATA", COUNT)
    devices: int = PLAN(1, "number of devices that share a step", COUNT)
    price: float | None = PLAN(
        None, "of one device for an hour, in any currency", Range("0 or more", lambda value: 0 <= value < inf)
    )
    efficiency: float | None = PLAN(
        None, "share of a named device's peak that products achieve (default: 0.5)", POSITIVE_SHARE
    )
    tflops: float | None = PLAN(
        None, "of your own device: trillions of operations a second at the run's precision", FINITE
    )
    bandwidth: float | None = PLAN(None, "of your own device's memory, GB/s", FINITE)
    memory: float | None = PLAN(None, "of your own device, or to leave it less: GiB", FINITE)
    link: float | None = PLAN(None, "GB/s that one device sends to the others (default: the device's)", FINITE)

    def __post_init__(self) -> None:
        super().__post_init__()
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
