"""The processes of one run: who they are, how they agree, and how a model is spread over them.

torchrun, ``vitlet train --nproc`` and a process alone all lead here; the loop sees a `World` and asks no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitlet.errors import LostProcessError, VitletError, first_line
from vitlet.processes import this_process

Result = TypeVar("Result")

PATIENCE = timedelta(minutes=30)
"""How long a process waits for the others: the first may decode a whole dataset meanwhile."""

LARGE_BLOCK = 100_000
"""Parameters from which a layer of a list of layers is sharded by itself."""


@dataclass(frozen=True)
class World:
    """The processes that train together, seen from one of them."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        """Whether this process writes files and talks to people."""
        return self.rank == 0

    def largest(self, values: Sequence[float]) -> list[float]:
        """Each value at its largest over all processes: a flag that one process raises, all see."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor.tolist()

    def sums(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in order of rank, known to all."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def by_first(self, work: Callable[[], Result]) -> Result:
        """Let the first process do something; all get its result, or all raise its error."""
        if self.size == 1:
            return work()
        answer: list[Any] = [None, None]
        if self.first:
            try:
                answer[0] = work()
            except VitletError as problem:
                answer[1] = problem
        dist.broadcast_object_list(answer, src=0)
        if answer[1] is not None:
            raise answer[1]
        result: Result = answer[0]
        return result

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the first one's tensors, such as running means, before they evaluate."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)


@contextmanager
def joined(*, sharded: bool = False) -> Iterator[World]:
    """Join the process group of torchrun or ``--nproc``, and leave it at the end."""
    process = this_process()
    size, local = process.size, process.local_rank
    if dist.is_initialized():  # met already
        yield World(dist.get_rank(), dist.get_world_size(), local)
        return
    if size == 1 and not sharded:  # there is no other
        yield World()
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if size == 1:
        dist.init_process_group(backend, rank=0, world_size=1, store=dist.HashStore())  # type: ignore[attr-defined]
    else:
        try:
            dist.init_process_group(backend, timeout=PATIENCE)
        except (ValueError, RuntimeError, dist.DistError) as problem:
            raise VitletError(
                f"WORLD_SIZE is {size}, but the processes could not meet: {first_line(problem)}. Start them with"
                " torchrun or --nproc."
            ) from problem
    try:
        yield World(dist.get_rank(), size, local)
    finally:
        dist.destroy_process_group()


def lost_process(problem: Exception, world: World) -> VitletError | None:
    """Error message if PyTorch's error means that another process has ended."""
    text = first_line(problem)
    if "DataLoader" in str(problem):
        error = LostProcessError(f"a loading process is gone or stuck: {text}. With -j 0 none is needed.")
        error.everywhere = False
        return error
    if world.size > 1 and ("gloo" in text.lower() or "nccl" in text.lower() or "Connection" in text):
        return LostProcessError(f"another process of this run is gone: {text}.")
    return None


def local_device(name: str, world: World) -> str:
    """The device of this process: with several, each takes its own accelerator."""
    if world.size == 1:
        return name
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.partition(":")[0] != "cuda":
        return name
    if world.local_rank >= torch.cuda.device_count():
        raise VitletError(
            f"process {world.local_rank} of this machine needs its own GPU, found {torch.cuda.device_count()}."
            " Start as many processes as there are GPUs."
        )
    torch.cuda.set_device(world.local_rank)
    return f"cuda:{world.local_rank}"


def shard(module: nn.Module, backbone: nn.Module) -> None:
    """Spread the parameters over all processes (FSDP2), each large layer of the backbone by itself."""
    from torch.distributed.fsdp import fully_shard

    for block in _blocks(backbone):
        fully_shard(block)
    fully_shard(module)


def _blocks(module: nn.Module) -> list[nn.Module]:
    """The large layers in lists of layers; where such lists are nested, the innermost."""
    lists = [inner for inner in module.modules() if isinstance(inner, (nn.ModuleList, nn.Sequential))]
    layers = [layer for inner in lists for layer in inner.children()]
    large = [layer for layer in layers if sum(p.numel() for p in layer.parameters()) >= LARGE_BLOCK]
    return [layer for layer in large if not any(other in large for other in list(layer.modules())[1:])]


def replicate(module: nn.Module, device: torch.device, *, unused: bool) -> DistributedDataParallel:
    """A copy in every process, gradients averaged while they are computed (DDP)."""
    places = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=places, find_unused_parameters=unused)


@contextmanager
def synchronised(module: nn.Module, wanted: bool) -> Iterator[None]:
    """Whether the backward pass inside sends gradients to the other processes."""
    if isinstance(module, DistributedDataParallel):
        with nullcontext() if wanted else module.no_sync():
            yield
        return
    if hasattr(module, "set_requires_gradient_sync"):
        module.set_requires_gradient_sync(wanted)  # type: ignore[operator]
    yield
