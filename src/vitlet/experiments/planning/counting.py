"""Every tensor operation of a step, counted: arithmetic, bytes moved, and the memory that is alive meanwhile.

Works on real tensors and on fake ones, which have sizes but no content, so that a step of any model is counted on
any machine without being computed.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "device", "detach", "set_"}
"""Operations that move nothing."""

SMALL_KERNEL = 25
"""Places up to which a depthwise convolution is bound by its traffic more than by its arithmetic."""


@dataclass(frozen=True)
class Work:
    """One operation: what kind it is, floating-point operations of its products, and bytes read and written."""

    kind: str
    precision: str
    flops: int
    bytes: int


def work_of(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> Work | None:
    """Work of one operation; None for views and allocations."""
    name = function._overloadpacket.__name__
    if function.namespace != "aten" or name in FREE or name == "_unsafe_view":
        return None
    returns = function._schema.returns
    if returns and all(each.alias_info is not None and not each.alias_info.is_write for each in returns):
        return None  # a view
    inputs = list(_tensors((arguments, keywords)))
    written = _written(function, arguments, keywords, result)
    moved = sum(_bytes(tensor) for tensor in [*inputs, *written])
    precision = next((str(tensor.dtype) for tensor in [*inputs, *written] if tensor.is_floating_point()), "integer")
    flops = _flops(function, name, arguments, keywords, result)
    return Work(_kind(name, arguments), precision.removeprefix("torch."), flops, moved)


def _flops(function: Any, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> int:
    if name == "convolution_backward":  # torch's own formula takes no account of groups
        gradient, _, weight = arguments[:3]
        return int(sum(arguments[-1][:2]) * 2 * gradient.numel() * math.prod(weight.shape[1:]))
    formula = flop_registry.get(function._overloadpacket, lambda *_, **__: 0)
    return int(formula(*arguments, **keywords, out_val=result))


def _kind(name: str, arguments: tuple[Any, ...]) -> str:
    """Operations of one kind run at like speeds: the name, and for convolutions what is convolved."""
    name = name.removesuffix("_")
    if name in ("mm", "addmm", "bmm", "baddbmm"):
        # the layouts matter: without a library for a precision, they are all that does
        layouts = "".join("n" if matrix.stride(-1) == 1 else "t" for matrix in arguments[-2:])
        return f"{name.replace('add', '').replace('bb', 'b')}_{layouts}"
    if "scaled_dot_product" in name:
        return "attention_backward" if name.endswith("backward") else "attention"
    if name not in ("convolution", "convolution_backward"):
        return name
    weight = arguments[1] if name == "convolution" else arguments[2]
    kernel = math.prod(weight.shape[2:])
    if weight.shape[1] == 1 and weight.shape[0] > 1:
        return f"{'small' if kernel <= SMALL_KERNEL else 'large'}_depthwise_{name}"
    return f"pointwise_{name}" if kernel == 1 else name


def _tensors(nested: Any) -> Iterable[Tensor]:
    return (leaf for leaf in tree_leaves(nested) if isinstance(leaf, Tensor))


def _bytes(tensor: Tensor) -> int:
    """Bytes that a pass over the tensor touches; an expanded one is no larger than its storage."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _written(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> list[Tensor]:
    """Results, and arguments that are changed in place."""
    declared = function._schema.arguments
    given = {argument.name: value for argument, value in zip(declared, arguments, strict=False)} | keywords
    changed = [each.name for each in declared if each.alias_info is not None and each.alias_info.is_write]
    found = list(_tensors([given.get(name) for name in changed]))
    return found + [tensor for tensor in _tensors(result) if id(tensor) not in set(map(id, found))]


class Counting(TorchDispatchMode):
    """Within it, every operation is counted, and timed if there is a clock.

    Attributes:
        work: how often each piece of work was done.
        times: seconds that it took by the clock, each time.
        live: bytes of all storages seen that are still in use.
        peak: the most there ever was.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work: Counter[Work] = Counter()
        self.times: dict[Work, list[float]] = defaultdict(list)
        self.clock = clock or (lambda: 0.0)
        self.live = self.peak = 0
        self._seen: set[int] = set()

    def hold(self, tensors: Iterable[Tensor]) -> int:
        """Take these tensors' storages into account; returns the bytes that are new."""
        added = 0
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._seen:
                self._seen.add(storage._cdata)
                added += storage.nbytes()
                weakref.finalize(storage, self._release, storage._cdata, storage.nbytes())
        self.live += added
        self.peak = max(self.peak, self.live)
        return added

    def _release(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size

    def take(self) -> Counter[Work]:
        """Counts since the last call."""
        work, self.work = self.work, Counter()
        return work

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        keywords, start = keywords or {}, self.clock()
        result = function(*arguments, **keywords)
        taken = self.clock() - start
        work = work_of(function, arguments, keywords, result)
        if work is not None:
            self.work[work] += 1
            self.times[work].append(taken)
        if function.namespace == "aten":
            self.hold(_tensors(result))
        return result


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """Within it, the bytes that operations keep for the backward pass are added up, each storage once."""

    def __init__(self, apart: Iterable[Tensor] = ()) -> None:
        self.total = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in apart}  # weights are there anyway
        super().__init__(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self.total += storage.nbytes()
        return tensor
