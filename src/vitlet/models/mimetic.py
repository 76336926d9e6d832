"""Mimetic initialisation of attention: weights that start with the products that trained ones have.

Trockman, Kolter: "Mimetic Initialization of Self-Attention Layers", ICML 2023, https://arxiv.org/abs/2305.09828. In
trained vision transformers the product of query and key weights is near the identity, that of value and projection
weights near minus the identity. With noise Z of variance 1/C, each product is drawn as ``a Z + a I`` or ``a Z - a I``
and factored by its singular value decomposition.
"""

from __future__ import annotations

import torch
from timm.layers.attention import Attention
from torch import Tensor

QUERY_KEY = 0.7
VALUE_PROJECTION = 0.4
"""Weights of noise and of the identity in the two products, equal for both parts."""


@torch.no_grad()
def mimetic_init(attention: Attention) -> None:
    """Initialise the four weights of an attention layer; biases become zero."""
    dim, heads, width = attention.qkv.in_features, attention.num_heads, attention.head_dim
    queries, keys = [], []
    for _ in range(heads):  # a head's product has rank C / h: the largest singular values are taken
        query, key = _factors(_near_identity(attention.qkv.weight, dim, QUERY_KEY), width)
        queries.append(query)
        keys.append(key)
    value, projection = _factors(_near_identity(attention.qkv.weight, dim, -VALUE_PROJECTION), attention.attn_dim)
    attention.qkv.weight.copy_(torch.cat([*queries, *keys, value]))
    attention.proj.weight.copy_(projection.T)
    for layer in (attention.qkv, attention.proj):
        if layer.bias is not None:
            torch.nn.init.zeros_(layer.bias)


def _near_identity(like: Tensor, dim: int, weight: float) -> Tensor:
    """A matrix ``(C, C)``: the identity, with the sign of the weight, and noise as strong."""
    noise = torch.randn(dim, dim, device=like.device, dtype=torch.float32) * dim**-0.5
    product: Tensor = abs(weight) * noise + weight * torch.eye(dim, device=like.device)
    return product


def _factors(product: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Two matrices ``(rank, C)``, the first transposed times the second being nearest to the product."""
    left, values, right = torch.linalg.svd(product)
    roots = values[:rank].sqrt()[:, None]
    return roots * left.T[:rank], roots * right[:rank]
