"""Turned, masked and recoloured views, and chains of them: pixels that name their own place say what is true."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import vitlet
from vitlet.tokens.geometry import grid_coords
from vitlet.tokens.masked import Masked, MaskedView
from vitlet.tokens.patch_augment import PatchAugment, grey_patches
from vitlet.tokens.patch_views import MegaPatches, MegaView, ShuffledPatches, to_patches
from vitlet.tokens.rotated import Rotated, RotatedView
from vitlet.tokens.views import Chain, PlainView, View, fitted, settled


def place_images(side: int, batch: int) -> Tensor:
    """Images whose two channels say each pixel's row and column."""
    return grid_coords(side, side).T.reshape(1, 2, side, side).repeat(batch, 1, 1, 1)


def seen_places(view: View) -> Tensor:
    """Where each pixel was: ``(B, N, 2)``, by what it says itself."""
    return view.images.flatten(2).transpose(1, 2)


def test_turned_pixels_and_coordinates_move_together() -> None:
    images = place_images(3, 64)
    view = Rotated()(images)
    assert isinstance(view, RotatedView)
    assert sorted(set(view.turns.tolist())) == [0, 1, 2, 3]
    for image, turned, turns in zip(images, view.images, view.turns.tolist(), strict=True):
        assert torch.equal(turned, image.rot90(turns, (1, 2)))
    assert torch.equal(view.coords(3, 3), seen_places(view))


def test_turns_are_even_and_independent() -> None:
    turns = torch.bincount(Rotated()(torch.zeros(4000, 1, 1, 1)).turns, minlength=4)  # type: ignore[attr-defined]
    assert (turns / 4000 - 0.25).abs().max() < 0.04


def test_turns_need_squares() -> None:
    with pytest.raises(vitlet.VitletError, match="needs square images, found 4x6 pixels"):
        Rotated()(torch.zeros(1, 1, 4, 6))
    with pytest.raises(vitlet.VitletError, match="needs a square token grid, found 2x3"):
        Rotated()(torch.zeros(1, 1, 6, 6)).coords(2, 3)


@pytest.mark.parametrize(
    "makers",
    [
        (ShuffledPatches(1), Rotated()),
        (Rotated(), ShuffledPatches(1)),
        (Rotated(), Rotated(), ShuffledPatches(2)),
        (ShuffledPatches(1), PlainView(), Rotated()),
    ],
)
def test_chains_of_moves_say_where_each_pixel_was(makers: Any) -> None:
    view = Chain(makers)(place_images(4, 9))
    assert torch.equal(view.coords(4, 4), seen_places(view))


def test_a_mask_keeps_the_places_of_the_view_before() -> None:
    images = place_images(4, 6) + 1  # no pixel is 0 by itself
    view = Chain((Rotated(), Masked(1, ratio=0.5, share=0.5)))(images)
    assert isinstance(view, MaskedView)
    hidden = view.hidden
    assert len(view.images) == len(hidden.pixels) == len(view.coords(4, 4)) == 3
    assert torch.equal(view.coords(4, 4) + 1, hidden.pixels.flatten(2).transpose(1, 2))
    assert torch.equal(view.images == 0, hidden.cells[:, None].expand_as(view.images))
    assert torch.equal(Masked(1)(images).coords(4, 4), grid_coords(4, 4)[None])


@pytest.mark.parametrize(("ratio", "count"), [(0.01, 1), (0.25, 2), (0.5, 4), (0.8, 6), (0.99, 7)])
def test_so_many_patches_are_hidden(ratio: float, count: int) -> None:
    """Of two rows and four columns, at least one and never all; each is hidden as often as the others."""
    view = Masked(2, ratio=ratio)(torch.ones(2000, 1, 4, 8))
    cells = view.hidden.cells  # type: ignore[union-attr]
    assert cells.shape == (2000, 2, 4)
    assert cells.flatten(1).sum(1).unique().tolist() == [count]
    assert (cells.float().mean(0) - count / 8).abs().max() < 0.05
    expected = 1 - cells.float().repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert torch.equal(view.images[:, 0], expected)


@pytest.mark.parametrize(("share", "count"), [(0.01, 1), (0.5, 3), (0.51, 3), (0.61, 4), (1.0, 5)])
def test_a_share_of_the_batch_is_rounded_up(share: float, count: int) -> None:
    images = torch.rand(5, 1, 4, 4)
    view = Masked(2, share=share)(images)
    assert torch.equal(view.hidden.pixels, images[:count])  # type: ignore[union-attr]


@pytest.mark.parametrize("settings", [{"ratio": 0.0}, {"ratio": 1.0}, {"share": 0.0}, {"share": 1.01}, {"ratio": -0.5}])
def test_shares_that_hide_nothing_or_all(settings: dict[str, float]) -> None:
    with pytest.raises(vitlet.VitletError, match="needed are a ratio between 0 and 1"):
        Masked(2, **settings)


@pytest.mark.parametrize(("patch", "size"), [(3, (4, 6)), (3, (6, 4)), (4, (4, 4)), (None, (4, 4))])
def test_patches_that_do_not_fit(patch: int | None, size: tuple[int, int]) -> None:
    with pytest.raises(vitlet.VitletError, match="cannot be masked by patches of"):
        Masked(patch)(torch.zeros(1, 1, *size))
    assert Masked(4)(torch.zeros(1, 1, 4, 8)).hidden is not None  # two patches are enough


def test_links_of_a_chain_are_fitted_and_settled() -> None:
    chain = Chain((Masked(), ShuffledPatches(4)))
    assert fitted(chain, (24, 16), (6, 4)) == Chain((Masked(4), ShuffledPatches(4)))
    assert fitted(Masked(ratio=0.5), (24, 16), (6, 4)) == Masked(4, ratio=0.5)
    assert fitted(Masked(2), (24, 16), (6, 4)) == Masked(2)
    assert fitted(PlainView(), (24, 16), (6, 4)) == PlainView()
    augment = PatchAugment(4, (0.5,), (0.5,))
    assert settled(augment) == settled(Chain((augment, augment))) == PlainView()
    assert settled(Chain((augment, Rotated()))) == Rotated()
    assert settled(Chain((Rotated(), MegaPatches(4)))) == Chain((Rotated(), MegaPatches(4, even=True)))
    for pixels in ((24, 18), (18, 24), (25, 16)):
        with pytest.raises(vitlet.VitletError, match="not square patches"):
            fitted(Masked(), pixels, (6, 4))


def test_an_ordinary_view_hides_nothing_and_follows_the_one_before() -> None:
    images = torch.rand(2, 1, 4, 4)
    turned = Rotated()(images)
    after = View(images * 2).after(turned)
    assert View(images).hidden is None
    assert torch.equal(after.images, images * 2)
    assert torch.equal(after.coords(4, 4), turned.coords(4, 4))
    with pytest.raises(vitlet.VitletError, match="Put MegaPatches first"):
        MegaView(images).after(turned)


UNIT: dict[str, Any] = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "crop": 1.0, "jitter_chance": 1.0, "grey_chance": 0.0}


def patches_of(images: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The patches of images before and after: ``(M, 3, 4, 4)``."""
    view = PatchAugment(4, **{**UNIT, **options})(images)
    before, after = (to_patches(each, 4).flatten(0, 1) for each in (images, view.images))
    return before, after


def test_contrast_turns_about_the_mean_of_each_patch() -> None:
    images = 0.4 + 0.2 * torch.rand(2, 3, 8, 8)
    images[1] += 0.15  # another level, which must not be mixed in
    before, after = patches_of(images, jitter=(0.0, 0.4, 0.0, 0.0))
    middle = grey_patches(before).mean((1, 2, 3), keepdim=True)
    shares = ((after - middle) / (before - middle)).flatten(1)
    torch.testing.assert_close(shares, shares.median(1, keepdim=True).values.expand_as(shares), atol=0.02, rtol=0.02)
    assert shares.amin() > 0.58
    assert shares.amax() < 1.42
    assert shares.median(1).values.std() > 0.05  # each patch by a number of its own


def test_brightness_is_a_factor_of_each_patch() -> None:
    before, after = patches_of(0.2 + 0.4 * torch.rand(2, 3, 16, 16), jitter=(0.4, 0.0, 0.0, 0.0))
    factors = (after / before).flatten(1)
    torch.testing.assert_close(factors, factors[:, :1].expand_as(factors))
    assert 0.6 <= factors.min() < 0.75
    assert 1.25 < factors.max() <= 1.4


def test_saturation_keeps_the_grey_of_each_pixel() -> None:
    before, after = patches_of(0.4 + 0.2 * torch.rand(2, 3, 8, 8), jitter=(0.0, 0.0, 0.4, 0.0))
    torch.testing.assert_close(grey_patches(after), grey_patches(before), atol=1e-4, rtol=0)
    assert not torch.allclose(after, before)


def test_the_usual_strengths_are_those_of_the_paper() -> None:
    augment = PatchAugment(4, (0.5,), (0.5,))
    assert (augment.jitter, augment.jitter_chance, augment.grey_chance) == ((0.4, 0.4, 0.4, 0.1), 0.8, 0.2)
    assert augment.crop == 1.15
