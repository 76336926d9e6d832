"""Ultralytics' yolo11n-cls with its defaults, from scratch: its description alone is used, no weights.

Its own limit of time (``time=`` hours) plans the epochs; where CPU time counts, its clock is replaced by that.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from common import Budget, arguments, link_folders, report, rows


def main() -> None:
    """Train until the time is used, test once, print."""
    chosen = arguments(__doc__)
    budget = Budget(chosen.seconds, wall=chosen.wall)
    with tempfile.TemporaryDirectory() as work:
        os.environ |= {"YOLO_CONFIG_DIR": work, "YOLO_OFFLINE": "true", "YOLO_VERBOSE": "false"}
        import torch
        from ultralytics import YOLO
        from ultralytics.engine import trainer

        if not chosen.wall:
            torch.set_num_threads(1)
            trainer.time = SimpleNamespace(time=time.process_time, sleep=time.sleep)
        link_folders(chosen.images, Path(work) / "images", {"train": "train", "test": "val"})
        model, ended = YOLO("yolo11n-cls.yaml"), []
        model.add_callback("on_train_batch_end", lambda trainer: ended.append(budget.used()))
        left = budget.seconds - budget.used()
        usual = {"device": "cpu", "workers": 0, "val": False, "plots": False, "amp": False, "verbose": False}
        model.train(
            data=str(Path(work) / "images"),
            imgsz=chosen.size,
            time=left / 3600,
            seed=chosen.seed,
            project=work,
            exist_ok=True,
            **usual,
        )
        images, batch = len(rows(chosen.images, "train")), model.trainer.args.batch
        found = model.val(data=str(Path(work) / "images"), imgsz=chosen.size, plots=False, verbose=False)
        report(100 * float(found.top1), len(ended) * batch / images, ended[-1])


if __name__ == "__main__":
    main()
