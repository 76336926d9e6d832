"""Models that return logits and an embedding in one pass, by PyTorch, onnxruntime or OpenVINO."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitlet.errors import require_extra

Dtype = Literal["float32", "bfloat16"]
INPUT, OUTPUTS = "images", ("logits", "embedding")
"""Names in the files that other programs read."""


class TorchNetwork(nn.Module):
    """A timm model that returns its logits and the features before its classifier.

    Args:
        model: with timm's ``forward_features`` and ``forward_head``.
        dtype: in which it computes; what goes in and comes out is float32.
    """

    def __init__(self, model: nn.Module, dtype: Dtype = "float32") -> None:
        super().__init__()
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.model = model.to(self.dtype)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``(B, channels, height, width)`` -> logits ``(B, classes)`` and embeddings ``(B, features)``."""
        model: Any = self.model
        features = model.forward_features(images.to(self.dtype))
        embedding = model.forward_head(features, pre_logits=True)
        return model.forward_head(features).float(), embedding.float().flatten(1)


class OnnxNetwork(nn.Module):
    """A file for onnxruntime, computed on the CPU with as many threads as PyTorch has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        runtime = require_extra("onnxruntime", "onnx", "an export to ONNX")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
        options.log_severity_level = 3
        self.session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """See `TorchNetwork`."""
        logits, embedding = self.session.run(list(OUTPUTS), {INPUT: images.cpu().numpy()})
        return torch.from_numpy(logits), torch.from_numpy(embedding)


class OpenVinoNetwork(nn.Module):
    """A file for OpenVINO, computed on the CPU; ``bfloat16`` where the CPU has instructions for it."""

    def __init__(self, path: Path, dtype: Dtype = "float32") -> None:
        super().__init__()
        openvino = import_openvino()
        hints = {
            "INFERENCE_PRECISION_HINT": "bf16" if dtype == "bfloat16" else "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
        }
        self.compiled = openvino.Core().compile_model(str(path), "CPU", hints)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """See `TorchNetwork`."""
        request = self.compiled.create_infer_request()  # its own: several threads may ask at once
        request.infer([images.cpu().numpy()])
        return tuple(torch.from_numpy(request.get_output_tensor(index).data.copy()) for index in (0, 1))  # type: ignore[return-value]


class LogitsOf(nn.Module):
    """The logits alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """``(B, classes)``."""
        logits: Tensor = self.network(images)[0]
        return logits


def import_openvino() -> Any:
    """OpenVINO without its telemetry: on its own, importing it sends a message to its makers."""
    if "openvino" not in sys.modules:
        # To its import this means: not installed.
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return require_extra("openvino", "openvino", "an export to OpenVINO")


def has_bfloat16() -> bool:
    """Whether OpenVINO computes in bfloat16 on this CPU; it falls back to float32 where it does not."""
    return "BF16" in import_openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
