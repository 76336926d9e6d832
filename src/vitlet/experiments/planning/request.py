"""Settings of a plan beyond those of the run."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from vitlet.config.setting import COUNT, POSITIVE_SHARE, Group, Range, Settings
from vitlet.errors import VitletError

PLAN = Group("plan")
FINITE = Range("greater than 0", lambda value: 0 < value < inf)


@dataclass(frozen=True)
class PlanRequest(Settings):
    """Number, speed and price of the devices."""

    images: int | None = PLAN(None, "number of training images, instead of DATA", COUNT)
    devices: int = PLAN(1, "number of devices that share a training step", COUNT)
    price: float | None = PLAN(
        None, "price of one device per hour, in any currency", Range("at least 0", lambda value: 0 <= value < inf)
    )
    efficiency: float | None = PLAN(
        None, "fraction of a named device's peak performance that is reached (default: 0.5)", POSITIVE_SHARE
    )
    tflops: float | None = PLAN(None, "TFLOPS of your own device at the run's precision", FINITE)
    bandwidth: float | None = PLAN(None, "memory bandwidth of your own device in GB/s", FINITE)
    memory: float | None = PLAN(None, "device memory in GiB, of your own device, or to limit a named one", FINITE)
    link: float | None = PLAN(None, "bandwidth between devices in GB/s (default: the device's)", FINITE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.tflops is None) != (self.bandwidth is None):
            raise VitletError("a custom device requires both --tflops and --bandwidth; got one of them.")
        if self.tflops is not None and self.memory is None:
            raise VitletError("a custom device requires --memory, in GiB, in addition to --tflops and --bandwidth.")

    def share(self, batch_size: int, parts: int) -> int:
        """Images per device and micro-batch, for ``parts`` gradient-accumulation steps."""
        pieces = self.devices * parts
        if batch_size % pieces:
            split = f"{self.devices} devices" + (f" x {parts} parts" if parts > 1 else "")
            fitting = max(pieces, round(batch_size / pieces) * pieces)
            raise VitletError(
                f"a batch of {batch_size} images does not divide by {split}; batch_size is all images of one step."
                f" Use -b {fitting}."
            )
        return batch_size // pieces
