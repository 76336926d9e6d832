"""Both ways of `PairHead` are the MLP on two concatenated tokens, in value and in every gradient."""

import pytest
import torch
from torch import Tensor

from vitlet.tasks.heads import PairHead
from vitlet.tokens.geometry import sample_pairs

BATCH, CHANNELS, HIDDEN, OUT, PAIRS = 3, 5, 64, 4, 16
WAYS = pytest.mark.parametrize("tokens", [6, 15, 16, 35], ids=lambda count: f"{count} tokens")  # 15 | 16: ways change


def plain(head: PairHead, tokens: Tensor, pairs: Tensor) -> Tensor:
    """The definition, one pair at a time."""
    images = []
    for image, indices in zip(tokens, pairs, strict=True):
        ends = [torch.cat([image[first], image[second]]) for first, second in indices.tolist()]
        images.append(torch.stack([head.last(head.extra(head.second(head.first(e).relu()).relu())) for e in ends]))
    return torch.stack(images)


def gradients(out: Tensor, head: PairHead, tokens: Tensor) -> dict[str, Tensor]:
    """Of an uneven function of the outputs, by name."""
    slope = torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64).view_as(out)
    leaves = {"tokens": tokens, **dict(head.named_parameters())}
    return dict(zip(leaves, torch.autograd.grad((out.double() * slope).sum(), list(leaves.values())), strict=True))


def example(tokens: int, dtype: torch.dtype, *, extra: bool = False) -> tuple[PairHead, Tensor, Tensor]:
    torch.manual_seed(0)
    head = PairHead(CHANNELS, HIDDEN, OUT, extra_linear=extra).to(dtype)
    values = torch.randn(BATCH, tokens, CHANNELS, dtype=dtype, requires_grad=True)
    return head, values, sample_pairs(BATCH, tokens, PAIRS)


@WAYS
@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_equals_the_plain_form(tokens: int, extra: bool, dtype: torch.dtype, tolerance: float) -> None:
    head, values, pairs = example(tokens, dtype, extra=extra)
    out, expected = head(values, pairs), plain(head, values, pairs)
    assert out.shape == (BATCH, PAIRS, OUT)
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    wanted = gradients(expected, head, values)
    for name, gradient in gradients(out, head, values).items():
        error = (gradient - wanted[name]).abs().max() / wanted[name].abs().max()
        assert error < tolerance, f"{name}: relative error {error:.1e}"


def test_order_within_a_pair_matters() -> None:
    for tokens in (6, 35):
        head, values, pairs = example(tokens, torch.float32)
        assert not torch.allclose(head(values, pairs), head(values, pairs.flip(-1)))


@WAYS
def test_bf16_autocast(tokens: int) -> None:
    head, values, pairs = example(tokens, torch.float32)
    expected = plain(head, values, pairs)
    with torch.autocast("cpu", torch.bfloat16):
        out = head(values, pairs)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=0.02)
    wanted = gradients(expected, head, values)
    for name, gradient in gradients(out, head, values).items():
        assert gradient.dtype == torch.float32
        error = (gradient - wanted[name]).norm() / wanted[name].norm()
        assert error < 0.25, f"{name}: relative error {error:.3f}"  # rounding flips ReLUs; a wrong side gives over 1


@pytest.mark.parametrize("tokens", [6, 35])
def test_compiles_without_a_graph_break(tokens: int) -> None:
    head, values, pairs = example(tokens, torch.float32)
    compiled = torch.compile(head, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(values, pairs), head(values, pairs))
    out, wanted = compiled(values, pairs), gradients(head(values, pairs), head, values)
    for name, gradient in gradients(out, head, values).items():
        torch.testing.assert_close(gradient, wanted[name], msg=name)
