"""The state of a sharded run (FSDP2): every process writes its own part, and any number of processes reads it."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from vitlet.errors import VitletError

SHARDS = "shards"

ALLOWED = {
    ("torch.distributed.checkpoint.metadata", name)
    for name in (
        "Metadata",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "TensorProperties",
        "ChunkStorageMetadata",
    )
} | {
    ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
    ("torch.distributed.checkpoint.metadata", "StorageMeta"),
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
    ("torch.serialization", "_get_layout"),
    *(("torch", name) for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")),
}
"""All that the index of a distributed checkpoint may name; PyTorch itself would unpickle anything."""


class _SafeUnpickler(pickle.Unpickler):
    """Makes the records of a checkpoint's index, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise VitletError(f"the checkpoint's index refers to {module}.{name}, which is not allowed.")
        return super().find_class(module, name)


class _SafeReader(FileSystemReader):
    """Reads a distributed checkpoint whose index may be hostile."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        content = (Path(self.path) / ".metadata").read_bytes()
        metadata: Metadata = _SafeUnpickler(io.BytesIO(content)).load()
        for part in (metadata.storage_data or {}).values():
            if Path(part.relative_path).name != part.relative_path:
                raise VitletError(
                    f"the checkpoint's index names the file {part.relative_path}, which is outside of the checkpoint."
                )
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _SafePlanner(DefaultLoadPlanner):
    """Loads numbers and texts, where PyTorch's own would unpickle anything."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        loaded = torch.load(value, weights_only=True)
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], loaded)
        else:
            self.state_dict[read_item.dest_index.fqn] = loaded


def save_shards(folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, average: dict[str, Tensor]) -> None:
    """Save this process's shard; all processes call this together."""
    state: dict[str, Any] = {
        "objective": get_model_state_dict(module),
        "optimizer": get_optimizer_state_dict(module, optimizer),
        "average": average,
    }
    save(state, checkpoint_id=str(folder / SHARDS))


def load_shards(folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, average: dict[str, Tensor]) -> None:
    """Load what `save_shards` wrote, with any number of processes."""
    state: dict[str, Any] = {
        "objective": get_model_state_dict(module),
        "optimizer": get_optimizer_state_dict(module, optimizer),
        "average": average,
    }
    load(state, storage_reader=_SafeReader(str(folder / SHARDS)), planner=_SafePlanner())
    set_model_state_dict(module, state["objective"])
    set_optimizer_state_dict(module, optimizer, state["optimizer"])


def whole_weights(module: nn.Module) -> dict[str, Tensor]:
    """All weights of a sharded module, on the first process's CPU; all processes call this at once."""
    found: dict[str, Any] = get_model_state_dict(
        module, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    return found


def fill_weights(module: nn.Module, weights: dict[str, Any]) -> None:
    """Whole weights into a sharded module."""
    set_model_state_dict(module, weights, options=StateDictOptions(full_state_dict=True))
