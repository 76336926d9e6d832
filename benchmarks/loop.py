"""What the loop costs above the least that a training loop can be.

The same network, images, batch size and augmentation (crop by a few pixels, flip, mixup and cutmix), epoch by epoch in
turns in one process, one thread. The minimal loop is timm's own loader, optimizer, scheduler and mixup, with nothing
else: no metrics, no files, no seeds by step. vitlet's loop decides everything by keys, agrees, logs, and saves a
checkpoint and the weights after every epoch. Both read PNG files; timm decodes them in every epoch, vitlet once, which
is counted apart: "loop" leaves loading out of both. CPU time, the median epoch of each. bf16 has an eighth of the
images: a CPU without instructions for it is slow.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from timm.data import Mixup, create_loader
from timm.data.dataset import ImageDataset
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler

from timing import Report
from vitlet.config import RunConfig
from vitlet.training.distributed import World
from vitlet.training.jobs import build_job
from vitlet.training.loop import Trainer
from vitlet.training.run_folder import RunFolder
from vitlet.training.trackers import open_trackers

VIT = {"patch_size": 4, "embed_dim": 128, "depth": 6, "num_heads": 4}
MODEL, SIZE, BATCH, CLASSES = "vit_tiny_patch16_224", 32, 64, 10


def write_images(root: Path, count: int) -> Path:
    """Noise as PNG files; what is on them is of no account here."""
    draw = np.random.default_rng(0)
    for index in range(count):
        folder = root / str(index % CLASSES)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (SIZE, SIZE, 3), np.uint8)).save(folder / f"{index}.png")
    return root


class Clock:
    """CPU time of a piece of work, less that of waiting for batches."""

    def __init__(self) -> None:
        self.loading = 0.0

    def batches(self, loader: Any) -> Iterator[Any]:
        """The same batches, timed."""
        iterator = iter(loader)
        while True:
            start = time.process_time()
            batch = next(iterator, None)
            self.loading += time.process_time() - start
            if batch is None:
                return
            yield batch

    def measure(self, epoch: Callable[[], None]) -> tuple[float, float]:
        """Seconds of an epoch: in all, and without loading."""
        self.loading = 0.0
        start = time.process_time()
        epoch()
        total = time.process_time() - start
        return total, total - self.loading


class Timed:
    """A loader whose batches are timed."""

    def __init__(self, loader: Any, clock: Clock) -> None:
        self.loader, self.clock = loader, clock

    def __iter__(self) -> Iterator[Any]:
        return self.clock.batches(self.loader)


def minimal(data: Path, epochs: int, amp: bool, clock: Clock) -> Callable[[], None]:
    """timm's parts and the shortest loop around them; gives a function that trains one epoch."""
    torch.manual_seed(0)
    model = timm.create_model(MODEL, num_classes=CLASSES, img_size=SIZE, **VIT).train()
    loader = create_loader(
        ImageDataset(str(data)),
        input_size=(3, SIZE, SIZE),
        batch_size=BATCH,
        is_training=True,
        use_prefetcher=False,
        train_crop_mode="rkrc",
        color_jitter=None,
        hflip=0.5,
        num_workers=0,
        persistent_workers=False,
    )
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    scheduler = CosineLRScheduler(optimizer, t_initial=epochs * len(loader), warmup_t=len(loader), t_in_epochs=False)
    mixup, criterion = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=CLASSES), SoftTargetCrossEntropy()
    steps = [0]

    def epoch() -> None:
        for images, labels in clock.batches(loader):
            images, labels = mixup(images, labels)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
                loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            steps[0] += 1
            scheduler.step_update(steps[0])

    return epoch


def ours(data: Path, output: Path, epochs: int, amp: bool, clock: Clock) -> tuple[Trainer, RunFolder]:
    """vitlet's loop with everything on."""
    config = RunConfig(
        data=str(data),
        model=MODEL,
        model_kwargs=VIT,
        img_size=(SIZE, SIZE),
        val_fraction=0.0,
        epochs=epochs,
        batch_size=BATCH,
        mixup=0.8,
        cutmix=1.0,
        smoothing=0.1,
        amp=amp,
        device="cpu",
        workers=0,
        output=str(output),
    )
    job, world = build_job(config), World()
    order, loader = job.batches(world)
    folder = RunFolder.create(replace(job.config, output=str(output)))
    folder.trackers = open_trackers(job.config, folder.path, 0)
    trainer = Trainer(job, (order, Timed(loader, clock)), folder.path, folder, world, "loop")
    return trainer, folder


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5, help="of each loop [5]")
    parser.add_argument("--images", type=int, default=1024, help="of an epoch [1024]")
    parser.add_argument("--output", type=Path, help="write the table here")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("The loop", __doc__, chosen.output)
    report.add(["", f"ViT 128 x 6, {SIZE} px, patch 4, batch {BATCH}, {chosen.images} images an epoch.", ""])
    report.add(
        ["| precision | timm, s an epoch | vitlet | ratio | timm, loop | vitlet, loop | ratio | at most | verdict |"]
    )
    report.add(["|---|---|---|---|---|---|---|---|---|"])
    held = []
    with tempfile.TemporaryDirectory(prefix="vitlet-loop-") as work:
        for name, amp in (("fp32", False), ("bf16", True)):
            data = write_images(Path(work) / f"data-{name}", chosen.images // (8 if amp else 1))
            clock = Clock()
            epoch = minimal(data, chosen.epochs, amp, clock)
            trainer, folder = ours(data, Path(work) / name, chosen.epochs, amp, clock)
            save, seconds = trainer.saver.after_epoch, []

            def timed(save: Any = save, seconds: list[float] = seconds, **what: bool) -> None:
                start = time.monotonic()
                save(**what)
                seconds.append(time.monotonic() - start)

            trainer.saver.after_epoch = timed  # type: ignore[method-assign]
            theirs_found, ours_found = [], []
            for _ in range(chosen.epochs):
                theirs_found.append(clock.measure(epoch))
                ours_found.append(clock.measure(trainer._epoch))
            folder.close()
            (timm_all, timm_loop), (our_all, our_loop) = (
                tuple(statistics.median(column) for column in zip(*found[1:], strict=True))
                for found in (theirs_found, ours_found)
            )
            ratio = our_loop / timm_loop
            verdict = "pass" if ratio <= 1.10 else "**fail**"
            figures = f"{timm_all:.2f} | {our_all:.2f} | {our_all / timm_all:.2f} | {timm_loop:.2f} | {our_loop:.2f}"
            report.add([f"| {name} | {figures} | {ratio:.3f} | 1.10 | {verdict} |"])
            held.append(f"{1000 * statistics.median(seconds):.0f} ms ({name})")
    report.add(
        ["", "A save after an epoch (state with checksums, and weights, synced to the disk) held up training for a"]
    )
    report.add([f"median of {', '.join(held)} of wall time."])
    report.close()


if __name__ == "__main__":
    main()
