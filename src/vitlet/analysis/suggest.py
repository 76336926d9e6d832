"""Which unlabelled images to label next: a batch that is uncertain and diverse (BADGE, Ash et al., ICLR 2020).

An image stands for the gradient that its own guess would give the last layer: (probabilities - guess) x features. It
is long where the model is uncertain, and points elsewhere for other classes and other looks. k-means++ draws images
that are far from all that were drawn before, so that no doubt is asked about twice. There is nothing to tune.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlet.data.images import ImageSet, Subset
from vitlet.errors import VitletError
from vitlet.inference.predict import Predictor

DOUBT_MARGIN = 0.2
"""Margin below which two classes are said to be in doubt."""

_Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Suggestion:
    """An image to label.

    Attributes:
        rank: from 1, in the order of choice: a shorter list is the beginning of a longer one.
        image: its path or name.
        index: in the pool.
        predicted: the most likely class.
        probability: of that class.
        margin: how much more likely it is than the second.
        stands_for: uncertain images of the pool that are nearer to this one than to others on the list, with itself.
        why: in words.
    """

    rank: int
    image: str
    index: int
    predicted: str
    probability: float
    margin: float
    stands_for: int
    why: str


def diverse_batch(probabilities: _Floats, features: _Floats, count: int, seed: int) -> tuple[list[int], list[int]]:
    """Rows of ``count`` images by k-means++ on gradients, and of every image the place of the nearest of these.

    The place is -1 where no gradient at all is nearer: of images that the model is certain about.

    Gradients are never written out: the product of two is the product of their classes' parts times that of their
    features' parts.

    Args:
        probabilities: ``(N, classes)``.
        features: ``(N, features)``.
        count: images to choose, at most N.
        seed: of the draws.
    """
    random = np.random.default_rng(seed)
    errors = probabilities.copy()
    errors[np.arange(len(errors)), probabilities.argmax(1)] -= 1
    scaled = features - features.mean(0)
    scaled /= np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1e-6)
    lengths = (errors**2).sum(1) * (scaled**2).sum(1)
    chosen = [int(lengths.argmax())]
    nearest = lengths.copy()  # from the origin, which counts as chosen: what is certain would teach nothing
    owner = np.full(len(errors), -1)
    free = np.ones(len(errors), dtype=bool)
    while True:
        last = chosen[-1]
        free[last] = False
        apart = lengths + lengths[last] - 2 * (errors @ errors[last]) * (scaled @ scaled[last])
        apart = np.maximum(apart, 0.0)
        apart[last] = -1.0  # its own, whatever else is equal to it
        owner[apart < nearest] = len(chosen) - 1
        nearest = np.minimum(nearest, apart)
        if len(chosen) == count:
            return chosen, owner.tolist()
        weights = np.where(free, np.maximum(nearest, 0.0), 0.0).astype(np.float64)
        weights = weights if weights.sum() > 0 else free.astype(np.float64)  # all alike: any of them
        chosen.append(int(random.choice(len(weights), p=weights / weights.sum())))


def suggest(
    predictor: Predictor, pool: ImageSet, indices: tuple[int, ...], count: int, *, seed: int = 0, batch_size: int = 128
) -> list[Suggestion]:
    """The images of a pool to label next, in their order.

    Args:
        predictor: a trained classifier.
        pool: images.
        indices: of those that may be chosen, such as `vitlet.data.scan.overlap.new_images` finds.
        count: images to choose.
        seed: of the draws.
        batch_size: images at a time.
    """
    if not 1 <= count <= len(indices):
        raise VitletError(
            f"{count} images were asked for, but {len(indices)} of the pool are new and readable; needed is a number"
            f" from 1 to {len(indices)} (-n), or a larger pool."
        )
    found, features = predictor.describe(Subset(pool, indices), batch_size=batch_size)
    probabilities = found.numpy()
    chosen, owners = diverse_batch(probabilities, features.numpy(), count, seed)
    sizes = np.bincount([owner for owner in owners if owner >= 0], minlength=count)
    order = np.argsort(-probabilities, axis=1, kind="stable")
    suggestions = []
    for rank, row in enumerate(chosen):
        first, second = (int(each) for each in order[row, :2]) if probabilities.shape[1] > 1 else (0, 0)
        probability = float(probabilities[row, first])
        margin = probability - float(probabilities[row, second])
        names = predictor.classes[first], predictor.classes[second]
        doubt = f"{names[0]} or {names[1]}?" if margin < DOUBT_MARGIN else f"probably {names[0]}"
        alike = int(sizes[rank]) - 1
        why = f"{doubt} ({alike} similar)" if alike else f"{doubt} (unlike the others)"
        index = indices[row]
        suggestions.append(Suggestion(rank + 1, pool.name(index), index, names[0], probability, margin, alike + 1, why))
    return suggestions
