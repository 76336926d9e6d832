"""lightly-train's classifier with its defaults, torchvision's resnet18 from scratch.

It takes a number of steps, not a time: a first training of a few steps says how long one takes and what comes beside
them, a second one uses the rest of the budget. Both count.
"""

from __future__ import annotations

import os
import tempfile
from itertools import pairwise
from pathlib import Path

from common import Budget, arguments, link_folders, report, rows

TRIAL = 6
"""Steps of the first training."""
BATCH = 16
"""Its default for a classifier."""


def main() -> None:
    """Train until the time is used, test once, print."""
    chosen = arguments(__doc__)
    budget = Budget(chosen.seconds, wall=chosen.wall)
    with tempfile.TemporaryDirectory() as work:
        os.environ |= {"YOLO_CONFIG_DIR": work, "YOLO_OFFLINE": "true", "LIGHTLY_TRAIN_EVENTS_DISABLED": "1"}
        import lightly_train
        import torch
        from PIL import Image
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if not chosen.wall:
            torch.set_num_threads(1)
        ended: list[float] = []
        register_optimizer_step_post_hook(lambda *_: ended.append(budget.used()))
        link_folders(chosen.images, Path(work) / "images", {"train": "train"})
        train, test = rows(chosen.images, "train"), rows(chosen.images, "test")
        classes = dict(enumerate(sorted({label for _, label in train})))
        data = {"train": f"{work}/images/train", "val": f"{work}/images/val", "classes": classes}
        for number, (path, label) in enumerate(train[: len(classes)]):  # it wants some; the last step is what is tested
            place = Path(work) / "images" / "val" / label / f"{number}{Path(path).suffix}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path)

        def run(steps: int) -> None:
            lightly_train.train_image_classification(
                out=f"{work}/out",
                data=data,
                model="torchvision/resnet18",
                steps=steps,
                batch_size=BATCH,
                accelerator="cpu",
                num_workers=0,
                seed=chosen.seed,
                overwrite=True,
                transform_args={"image_size": (chosen.size, chosen.size)},
            )

        began = budget.used()
        run(TRIAL)
        step = sorted(after - before for before, after in pairwise(ended))[(TRIAL - 1) // 2]
        beside = budget.used() - began - TRIAL * step
        steps = int((budget.seconds - budget.used() - beside) / step)
        ended.clear()
        run(steps)
        model = lightly_train.load_model(f"{work}/out/exported_models/exported_last.pt")
        names = list(classes.values())
        right = sum(
            names[int(model.predict(Image.open(path).convert("RGB"), topk=1)["labels"][0])] == label
            for path, label in test
        )
        report(100 * right / len(test), len(ended) * BATCH / len(train), ended[-1])


if __name__ == "__main__":
    main()
