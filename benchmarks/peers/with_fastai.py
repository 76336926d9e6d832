"""fastai's xresnet18 with the recipe of its Imagenette example, from scratch.

Ranger, learning rate 8e-3 that is flat, then falls by a cosine, weight decay 1e-2, label smoothing, random resized
crops of 35 to 100 % of the area, flips, batches of 64. The schedule follows the time used.
"""

from __future__ import annotations

from typing import Any

from common import Budget, arguments, report, rows

RATE, DECAY, BATCH, MANY_EPOCHS = 8e-3, 1e-2, 64, 100_000


def main() -> None:
    """Train until the time is used, test once, print."""
    chosen = arguments(__doc__)
    budget = Budget(chosen.seconds, wall=chosen.wall)
    import pandas
    import torch
    from fastai.callback import schedule  # noqa: F401  (adds fit_flat_cos to learners)
    from fastai.vision import all as v

    if not chosen.wall:
        torch.set_num_threads(1)
    v.set_seed(chosen.seed)
    train = [(*row, False) for row in rows(chosen.images, "train")]
    held = [(path, label, True) for path, label in rows(chosen.images, "train")[:BATCH]]  # fastai wants some; not used
    table = pandas.DataFrame([*train, *held], columns=["path", "label", "held"])
    dls = v.ImageDataLoaders.from_df(
        table,
        path="/",
        valid_col="held",
        item_tfms=v.RandomResizedCrop(chosen.size, min_scale=0.35),
        batch_tfms=[*v.aug_transforms(max_rotate=0, max_zoom=1, max_lighting=0, max_warp=0), v.Normalize()],
        bs=BATCH,
        num_workers=0,
        device=torch.device("cpu"),
    )

    class ByClock(v.Callback):
        """The schedule's position is the share of the time that is used; nothing is validated."""

        order = 50  # before the scheduler

        def before_fit(self) -> None:
            self.began, self.steps = budget.used(), 0

        def before_batch(self) -> None:
            share = (budget.used() - self.began) / (budget.seconds - self.began)
            if share >= 1:
                raise v.CancelFitException
            self.learn.pct_train = share
            self.steps += 1

        def before_validate(self) -> None:
            raise v.CancelValidException

    clock: Any = ByClock()
    learner = v.Learner(
        dls,
        v.xresnet18(n_out=dls.c, pretrained=False),
        opt_func=v.ranger,
        loss_func=v.LabelSmoothingCrossEntropy(),
        metrics=v.accuracy,
    )
    with learner.no_bar(), learner.no_logging():
        learner.fit_flat_cos(MANY_EPOCHS, RATE, wd=DECAY, cbs=[clock])
        seconds = budget.used()
        tested = pandas.DataFrame(rows(chosen.images, "test"), columns=["path", "label"])
        scores, labels = learner.get_preds(dl=dls.test_dl(tested, with_labels=True))
    top1 = 100 * float((scores.argmax(1) == labels).float().mean())
    report(top1, clock.steps * BATCH / len(train), seconds)


if __name__ == "__main__":
    main()
