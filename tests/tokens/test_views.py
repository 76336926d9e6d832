"""Views: pixels and coordinates move together, whatever the size of the model's grid."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from sklearn.datasets import load_sample_image
from torch import Tensor
from torchvision.transforms.v2 import functional as reference

import vitlet
from vitlet.config import RunConfig, TaskConfig
from vitlet.tasks.position import Position
from vitlet.tasks.sprel import SpatialRelations
from vitlet.tokens.features import Grid
from vitlet.tokens.geometry import grid_coords
from vitlet.tokens.patch_augment import PatchAugment, blend_patches, grey_patches, random_crops, turn_hue
from vitlet.tokens.patch_views import MegaPatches, ShuffledPatches, area_weights, from_patches, to_patches
from vitlet.tokens.views import Chain, PlainView, View, ViewMaker, settled
from vitlet.training.terms import make_terms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photographs(height: int = 24, width: int = 32, batch: int = 3) -> Tensor:
    """Crops of a real photograph, between 0 and 1."""
    photograph = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1) / 255
    return torch.stack([photograph[:, 50 * n : 50 * n + height, 90 * n : 90 * n + width] for n in range(batch)])


def place_images(height: int, width: int, batch: int = 3) -> Tensor:
    """Images whose two channels say each pixel's row and column."""
    return grid_coords(height, width).T.reshape(1, 2, height, width).repeat(batch, 1, 1, 1)


def cell_means(images: Tensor, height: int, width: int) -> Tensor:
    """Mean of every cell of an even grid: ``(B, N, channels)``."""
    return F.adaptive_avg_pool2d(images, (height, width)).flatten(2).transpose(1, 2)


def test_patches_and_back() -> None:
    images = photographs()
    patches = to_patches(images, 8)
    assert patches.shape == (3, 12, 3, 8, 8)
    assert torch.equal(patches[1, 5], images[1, :, 8:16, 8:16])
    assert torch.equal(from_patches(patches, 24, 32), images)
    assert torch.equal(to_patches(images.to(memory_format=torch.channels_last), 8), patches)
    with pytest.raises(vitlet.VitletError, match=r"24x32 pixels cannot be cut into patches of 5x5"):
        to_patches(images, 5)


@pytest.mark.parametrize("finer", [1, 2, 4])
def test_shuffled_pixels_and_coordinates_move_together(finer: int) -> None:
    """Pixels that name their own place say what the coordinates must be, on the patch grid and on finer ones."""
    view = ShuffledPatches(8)(place_images(24, 32))
    height, width = 3 * finer, 4 * finer
    cell = 8 / finer
    expected = (cell_means(view.images, height, width) - (cell - 1) / 2) / cell
    coords = view.coords(height, width)
    torch.testing.assert_close(coords, expected)
    for one in coords:
        assert sorted(one.tolist()) == grid_coords(height, width).tolist()
    assert not torch.equal(coords[0], coords[1])  # every image has its own order


def test_coarser_grids_of_a_shuffled_view_are_refused() -> None:
    view = ShuffledPatches(4)(photographs())
    with pytest.raises(vitlet.VitletError, match=r"shuffled on a grid of 6x8, .* grid of 3x4 tokens, which mixes"):
        view.coords(3, 4)
    with pytest.raises(vitlet.VitletError, match="pooling mixes"):
        Grid(torch.zeros(3, 4, 6, 8), view.coords(6, 8)).pooled("2x2")


def test_area_weights_are_the_mean_of_each_interval() -> None:
    lines = torch.tensor([[0.0, 4.0, 12.0], [0.0, 8.0, 12.0]])
    weights = area_weights(lines, 4, 12)
    assert weights.shape == (2, 8, 12)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 8))
    column = torch.rand(12)
    torch.testing.assert_close(weights[0] @ column, torch.cat([column[:4], column[4:].view(4, 2).mean(1)]))
    torch.testing.assert_close(weights[1] @ column, torch.cat([column[:8].view(4, 2).mean(1), column[8:]]))
    torch.testing.assert_close(
        area_weights(torch.tensor([[0.0, 3.0]]), 2, 3)[0], torch.tensor([[2, 1, 0], [0, 1, 2]]) / 3
    )


@pytest.mark.parametrize("finer", [1, 2])
def test_mega_patches_know_their_place_in_the_image(finer: int) -> None:
    view = MegaPatches(4, side=3, coords="image")(place_images(24, 32))
    assert view.images.shape == (3, 2, 12, 12)
    side = 3 * finer
    # A pixel's value is its place: cell means are centres in pixels; then in cells of an even 3 x 3 (6 x 6) grid.
    pixels = torch.tensor([24.0, 32.0])
    expected = (cell_means(view.images, side, side) + 0.5) / pixels * side - 0.5
    coords = view.coords(side, side)
    torch.testing.assert_close(coords, expected)
    assert not torch.equal(coords[0], coords[1])  # every image has its own cuts
    assert not torch.allclose(coords[:, :side, 1], coords[:, ::side, 0])  # rows and columns have theirs


def test_cuts_run_between_patches_and_reach_all_of_them() -> None:
    maker = MegaPatches(4, side=3)
    lines = maker._cuts(500, 24, torch.device("cpu"))
    assert lines.shape == (500, 4)
    assert (lines % 4 == 0).all()
    assert (lines.diff(dim=1) >= 4).all()  # no cell is empty
    assert set(lines[:, 1:3].flatten().tolist()) == {4.0, 8.0, 12.0, 16.0, 20.0}


def test_index_coordinates_and_even_cuts_are_a_regular_grid() -> None:
    images = photographs()
    for maker in (MegaPatches(4, side=3), MegaPatches(4, side=3, coords="image", even=True)):
        assert torch.equal(maker(images).coords(3, 3), grid_coords(3, 3)[None])
    even = MegaPatches(4, side=3, even=True)(images).images
    torch.testing.assert_close(
        MegaPatches(4, side=3, even=True)(images[..., :24]).images, F.avg_pool2d(images[..., :24], 2)
    )
    assert torch.equal(even, MegaPatches(4, side=3, even=True)(images).images)


@pytest.mark.parametrize("side", [1, 6, 9])
def test_a_mega_side_outside_the_grid_is_refused(side: int) -> None:
    with pytest.raises(vitlet.VitletError, match=rf"{side} mega-patches cannot be cut .* 6 patches of 4"):
        MegaPatches(4, side=side)(photographs())


def test_chains_carry_places_along() -> None:
    images = place_images(24, 32)
    both = Chain((MegaPatches(4, side=3, coords="image"), ShuffledPatches(4)))(images)
    expected = (cell_means(both.images, 3, 3) + 0.5) / torch.tensor([24.0, 32.0]) * 3 - 0.5
    torch.testing.assert_close(both.coords(3, 3), expected)
    augmented = Chain((ShuffledPatches(8), PatchAugment(8, MEAN[:1] * 2, STD[:1] * 2)))
    torch.manual_seed(1)
    view = augmented(images)
    torch.manual_seed(1)
    assert torch.equal(view.coords(3, 4), ShuffledPatches(8)(images).coords(3, 4))
    with pytest.raises(vitlet.VitletError, match="Put MegaPatches first"):
        Chain((ShuffledPatches(4), MegaPatches(4, side=3)))(images)


def test_evaluation_leaves_nothing_to_chance() -> None:
    augment, mega, shuffle = PatchAugment(4, MEAN, STD), MegaPatches(4, side=3), ShuffledPatches(4)
    assert settled(PlainView()) == PlainView()
    assert settled(augment) == PlainView()
    assert settled(mega) == MegaPatches(4, side=3, even=True)
    assert settled(Chain((mega, augment))) == settled(mega)
    assert settled(Chain((augment,))) == PlainView()
    assert settled(Chain((mega, shuffle))) == Chain((settled(mega), shuffle))
    assert {Chain((mega, augment)): 1}[Chain((MegaPatches(4, side=3), PatchAugment(4, MEAN, STD)))] == 1


def slow_crop(pixels: Tensor, size: int, starts: Tensor) -> Tensor:
    crops = []
    for patch, (top, left) in zip(pixels, starts.T.tolist(), strict=True):
        crop = patch[None, :, top : top + size, left : left + size]
        crops.append(F.interpolate(crop, pixels.shape[-1], mode="bilinear")[0])
    return torch.stack(crops)


@pytest.mark.parametrize(("patch", "size"), [(4, 3), (8, 7), (16, 14)])
def test_crops_equal_a_slow_loop(patch: int, size: int) -> None:
    pixels = torch.rand(40, 3, patch, patch)
    torch.manual_seed(3)
    found = random_crops(pixels, size)
    torch.manual_seed(3)
    starts = torch.randint(patch - size + 1, (2, 40))
    torch.testing.assert_close(found, slow_crop(pixels, size, starts))


def test_colours_equal_torchvision() -> None:
    pixels = to_patches(photographs(), 8).flatten(0, 1)
    amounts = torch.linspace(-0.4, 0.4, len(pixels)).view(-1, 1, 1, 1)
    contrast = blend_patches(pixels, grey_patches(pixels).mean((1, 2, 3), keepdim=True), 1 + amounts)
    saturation = blend_patches(pixels, grey_patches(pixels), 1 + amounts)
    hue = turn_hue(pixels, amounts / 4)
    for one, amount, *found in zip(pixels, amounts.flatten().tolist(), contrast, saturation, hue, strict=True):
        torch.testing.assert_close(found[0], reference.adjust_contrast(one, 1 + amount), atol=1e-5, rtol=0)
        torch.testing.assert_close(found[1], reference.adjust_saturation(one, 1 + amount), atol=1e-5, rtol=0)
        torch.testing.assert_close(found[2], reference.adjust_hue(one, amount / 4), atol=1e-5, rtol=0)
    torch.testing.assert_close(grey_patches(pixels)[:, :1], reference.rgb_to_grayscale(pixels), atol=1e-5, rtol=0)


def test_patches_are_augmented_one_by_one() -> None:
    pixels = photographs(64, 64)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    images = (pixels - mean) / std
    nothing: dict[str, Any] = {"crop": 1.0, "jitter_chance": 0.0, "grey_chance": 0.0}
    same = PatchAugment(8, MEAN, STD, **nothing)(images).images
    torch.testing.assert_close(same, images, atol=1e-5, rtol=0)

    view = PatchAugment(8, MEAN, STD)(images)
    changed = to_patches(view.images * std + mean, 8)  # on pixels as they were: still between 0 and 1
    assert changed.min() > -1e-5
    assert changed.max() < 1 + 1e-5
    assert torch.equal(view.coords(8, 8), grid_coords(8, 8)[None])
    is_grey = (changed.amax(2) - changed.amin(2)).flatten(2).amax(2) < 1e-4
    assert 0.1 < is_grey.float().mean() < 0.35
    jittered = PatchAugment(8, MEAN, STD, crop=1.0, grey_chance=0.0)(images).images
    kept = (to_patches(jittered - images, 8).abs().flatten(2).amax(2) < 1e-5).float().mean()
    assert 0.1 < kept < 0.3  # jitter with probability 0.8
    half = PatchAugment(8, MEAN, STD)(images.to(torch.bfloat16)).images
    assert half.dtype == torch.bfloat16


def test_grey_images_change_in_brightness_and_contrast() -> None:
    images = grey_patches(photographs())
    view = PatchAugment(8, (0.5,), (0.5,))(images * 2 - 1)
    assert view.images.shape == images.shape
    assert not torch.equal(view.images, images * 2 - 1)


def small_vit(**options: Any) -> Any:
    arguments: dict[str, Any] = {"img_size": (24, 32), "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", **{**arguments, "num_classes": 5, **options})


@pytest.mark.parametrize("options", [{"dynamic_img_size": True}, {"dynamic_img_size": True, "pos_embed": "none"}])
def test_mega_patches_through_a_vit(options: dict[str, Any]) -> None:
    """The classifier sees whole images, the task 3 x 3 mega-patches, in one objective."""
    mega = MegaPatches(4, side=3, coords="image")
    tasks = [vitlet.Term(SpatialRelations(), view=mega), vitlet.Term(Position(), view=mega)]
    objective = vitlet.Objective(vitlet.TimmBackbone(small_vit(**options)), [*tasks, vitlet.Term(vitlet.DRLoc())])
    assert objective.tasks["position"].head.out_features == 9
    outcome = objective(photographs(), torch.tensor([0, 1, 2]))
    assert outcome.logits is not None
    outcome.loss.backward()
    assert float(outcome.metrics["position/chance"]) == pytest.approx(100 / 9)
    objective.eval()
    first, second = (objective(photographs()).parts["sprel"] for _ in range(2))
    assert torch.equal(first, second)  # even cuts


def test_mega_patches_through_swin_and_resnet() -> None:
    swin = timm.create_model(
        "swin_tiny_patch4_window7_224",
        img_size=64,
        window_size=4,
        embed_dim=16,
        depths=(1, 2),
        num_heads=(2, 4),
        num_classes=5,
        strict_img_size=False,
    )
    for model, patch in ((swin, 8), (timm.create_model("resnet10t", num_classes=5), 32)):
        size = 8 * patch
        backbone = vitlet.TimmBackbone(model, img_size=size)
        objective = vitlet.Objective(backbone, [vitlet.Term(Position(), view=MegaPatches(patch, side=6))])
        assert objective.tasks["position"].sides == (6, 6)
        objective(photographs(size, size)).loss.backward()


def test_a_network_of_one_size_says_what_to_do() -> None:
    backbone = vitlet.TimmBackbone(small_vit(pos_embed="none"))
    with pytest.raises(vitlet.VitletError, match=r"cannot take .* 12x12 pixels: .* dynamic_img_size=true"):
        vitlet.Objective(backbone, [vitlet.Term(Position(), view=MegaPatches(4, side=3))])


def test_views_compile() -> None:
    images = photographs()
    chain = Chain((MegaPatches(4, side=3, coords="image"), ShuffledPatches(4), PatchAugment(4, MEAN, STD)))

    def look(images: Tensor) -> tuple[Tensor, Tensor]:
        view: View = chain(images)
        return view.images, view.coords(3, 3)

    torch.manual_seed(5)
    expected = look(images)
    torch.manual_seed(5)
    found = torch.compile(look, backend="eager", fullgraph=True)(images)
    torch.testing.assert_close(found, expected)


def view_of(chosen: TaskConfig, backbone: vitlet.TimmBackbone) -> ViewMaker:
    """What a run's sprel would look at."""
    (term,) = make_terms(RunConfig(tasks={"sprel": chosen}), backbone)
    return term.view


def test_settings_make_views() -> None:
    """Patches are as large as the model's last tokens."""
    backbone = vitlet.TimmBackbone(small_vit(img_size=32, patch_size=4))
    augment = PatchAugment(4, (0.5,) * 3, (0.5,) * 3)  # this model's own statistics
    assert view_of(TaskConfig(1.0), backbone) == PlainView()
    assert view_of(TaskConfig(1.0, view="shuffle"), backbone) == ShuffledPatches(4)
    assert view_of(TaskConfig(1.0, patch_augment=True), backbone) == augment
    mega = TaskConfig(1.0, view="mega", patch_augment=True, mega_side=6, mega_coords="image")
    assert view_of(mega, backbone) == Chain((MegaPatches(4, 6, "image"), augment))
    swin = timm.create_model("swin_tiny_patch4_window7_224", img_size=64, window_size=2, num_classes=5)
    assert view_of(TaskConfig(1.0, view="shuffle"), vitlet.TimmBackbone(swin)) == ShuffledPatches(32)
    odd = vitlet.TimmBackbone(timm.create_model("resnet10t", num_classes=5), img_size=80)
    with pytest.raises(vitlet.VitletError, match=r"3x3 tokens on images of 80x80 pixels, which are not square"):
        view_of(TaskConfig(1.0, view="shuffle"), odd)


def test_views_are_settings_of_a_task() -> None:
    values = {"task": {"sprel": 1.0}, "sprel": {"view": "mega", "mega_side": "6", "patch_augment": True}}
    config = RunConfig.from_dict(values)
    assert config.tasks["sprel"] == TaskConfig(1.0, view="mega", mega_side=6, patch_augment=True)
    assert config.to_dict()["sprel"] == {"view": "mega", "mega_side": 6, "patch_augment": True}
    assert RunConfig.from_dict(config.to_dict()) == config
    with pytest.raises(vitlet.VitletError, match=r"sprel\.mega_side requires view mega"):
        RunConfig.from_dict({"task": {"sprel": 1.0}, "sprel": {"mega_side": 4}})
    with pytest.raises(vitlet.VitletError, match="one of plain, shuffle, mega"):
        RunConfig.from_dict({"task": {"sprel": 1.0}, "sprel": {"view": "rotated"}})
